//! Files, directories and attributes: nodes and pages in memory, and what programs do with them.
//!
//! | room | what it is for |
//! |---|---|
//! | [`nodes`], [`pages`] | nodes and pages in memory |
//! | [`place`], [`map`] | from a page of a file to its block |
//! | [`file`], [`directory`], [`names`], [`attributes`], [`xattr`] | operations of programs |
//! | `reading`, `writing` | reading and writing much at once |

pub(crate) mod attributes;
pub(crate) mod directory;
pub(crate) mod file;
pub(crate) mod map;
pub(crate) mod names;
pub(crate) mod nodes;
pub(crate) mod pages;
pub(crate) mod place;
pub(crate) mod reading;
pub(crate) mod writing;
pub(crate) mod xattr;
