"""Reports: the command of each run, its changes and the time of each part, as one page and as
figures for papers.

Every number on a page is a result of an SQL query over the journals (`ledger`), and the page
includes the query.
"""
