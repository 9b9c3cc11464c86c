"""HTTP routes: thin, over services. One application, behind one key; its OpenAPI document is the contract.

``serving.py`` listens, ``guard.py`` lets in, ``app.py`` puts the application together, ``rollouts.py`` and
``deliveries.py`` are the routes. FastAPI and uvicorn are the extra ``serve``, and imported here alone.
"""
