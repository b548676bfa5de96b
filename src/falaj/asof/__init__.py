"""What was true of a thing at a moment: order of rows, as-of joins, windows, layout of rows, rules. Pure, on numpy.

The platform, training sets and inference share it, so that one definition gives one number everywhere. Nothing here
knows a ledger, a policy or an address.
"""
