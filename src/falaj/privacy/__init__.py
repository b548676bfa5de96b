"""Privacy: what data is used for and on which basis, what people consented to and ask for, breaches, assessments.

A person is known here by a pseudonym only: HMAC of the identifier under the tenant's pepper in the zone. Who carries a
request out says the identifier, which is compared with the pseudonym and written nowhere.

What does not live here: the law (govern/profiles), who may not be used while others read (govern/refusals.py), taking
rows out of features and journals (features, serve), proofs (audit).
"""
