"""The desk of privacy: one class, written in the parts it inherits."""

from falaj.privacy.asking import Asking
from falaj.privacy.breaches import Breaches
from falaj.privacy.closing import Closing
from falaj.privacy.organisation import OrganisationProfile
from falaj.privacy.purposes import Purposes


class Privacy(Purposes, Asking, Closing, Breaches, OrganisationProfile):
    """Purposes, consent, requests of people, erasure with a certificate, breaches, assessments."""
