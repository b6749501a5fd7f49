"""Gives each item to one of several members, and to another one when that one goes before it is done.

Pure and without a network: brokers use it for durable subscriptions and groups.
"""
