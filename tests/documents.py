"""Supporting documents for tests: the contract that a transfer rests on, uploaded for real."""

from typing import Any

CONTRACT = "document:fraud/processor-contract"
CONTRACT_BYTES = b"%PDF-1.7 contract with the processor in Dublin\n"


def keep_contract(client: Any) -> dict[str, str]:
    """Upload the contract and return what a grant names as its documents."""
    client.approvals.add_document(CONTRACT, [CONTRACT_BYTES], "Contract with the processor", label="confidential")
    return {"contract": CONTRACT}
