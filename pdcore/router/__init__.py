"""The router: parses a request, picks a pair, sends both legs, relays decode's answer.

Reading order: api, pick, exchange (pure), then leg, dispatch, serving, endpoint (the shell around them), app, process.
"""
