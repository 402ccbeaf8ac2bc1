//! The OpenAPI document of the API, served at `/openapi.json`.
//!
//! Written by hand, because it is a promise and not a by-product; a test compares its paths,
//! methods and security with [`crate::routes::Route`].

/// The document, as JSON.
pub const DOCUMENT: &str = include_str!("openapi/openapi.json");

#[cfg(test)]
mod tests;
