"""Checks of the real lab: the verification ladder, power meters, test traffic, the doctor. Changes
no light and no route.
"""
