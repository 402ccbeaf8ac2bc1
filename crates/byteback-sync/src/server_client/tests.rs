//! The client against scripted answers.
