//! The outside world through small interfaces, real and simulated.
