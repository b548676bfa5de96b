"""The desk of privacy: one class, written in the parts it inherits."""

from falaj.privacy.breaches import BreachOperations
from falaj.privacy.erasure_completion import ErasureCompletion
from falaj.privacy.organisation import OrganisationOperations
from falaj.privacy.purposes import PurposeOperations
from falaj.privacy.subject_requests import RequestOperations


class PrivacyService(PurposeOperations, RequestOperations, ErasureCompletion, BreachOperations, OrganisationOperations):
    """Purposes, consent, requests of people, erasure with a certificate, breaches, assessments."""
