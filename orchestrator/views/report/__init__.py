"""Reports: what runs were asked, what they did and how long each part took, as one page and as figures for papers.

Every number on a page is the answer to an SQL question over the journals (`ledger`), and the page carries the question.
"""
