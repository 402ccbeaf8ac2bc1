//! Clients with short pauses, and their requests to join.

use byteback_api::messages::JoinRequest;
use byteback_client::ClientOptions;
use std::time::Duration;

/// As a client is by default, but with pauses of milliseconds.
pub fn patient() -> ClientOptions {
    ClientOptions {
        first_pause: Duration::from_millis(2),
        idle_timeout: Duration::from_secs(10),
        ..ClientOptions::default()
    }
}

/// Tries everything once.
pub fn impatient() -> ClientOptions {
    ClientOptions {
        attempts_max: 1,
        transfer_attempts_max: 1,
        ..patient()
    }
}

/// A request to join by a device that lets the server draw its token.
pub fn join_request(join_token: &str) -> JoinRequest {
    JoinRequest {
        join_token: join_token.to_owned(),
        name: "test".to_owned(),
        device_token: None,
    }
}
