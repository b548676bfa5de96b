"""What an officer or a regulator asks for: evidence packs by regime, the census, access reviews, findings.

Everything here runs beside the caller and is made of verbs, so nobody sees more by it than they may see anyway. What
does not live here: the log and its proofs (audit), people's requests (privacy), the numbers of laws (govern/profiles).
"""
