//! Request, response and event types of the HTTP API.
