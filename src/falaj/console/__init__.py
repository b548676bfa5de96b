"""The console: every page of the platform in the browser, in Arabic and English; a client of the public verbs."""
