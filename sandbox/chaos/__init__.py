"""The fault harness: sandboxes on a real daemon, with everything between going wrong, and a ledger of the promises."""
