//! The HTTP server over a store: routes, authentication, limits.
