//! Backup, restore, push and pull against a real server over TCP.
//!
//! | room | what is in it |
//! |---|---|
//! | `model` | random changes, backups and restores of every snapshot |
//! | `faults` | connections cut anywhere, servers that die or are full, files that cannot be read |
//! | `alike` | new files whose content the server has in another one |
//! | `examining` | whole files that are looked for in the server's version of them |
//! | `following` | everything is sent anew, by a log that the server does not know: as the difference from the files at the same paths there |
//! | `hostile` | answers that no honest server gives |
//! | `many_files` | restores of many small files, whose contents come in streams |
//! | `many_versions` | a file that was saved very often costs as one that was saved once |
//! | `pushing_equal` | pushes of trees most of which is equal at the server |
//! | `pushing_moves` | files and directories that were moved or copied between pushes |
//! | `pushing`, `pulling` | real directories, changed at random, pushed to the server and pulled from it |
//! | `on_btrfs` | SkySync with the checksums of a real btrfs, mounted and not |
//! | `path_list` | a copy that follows the listed paths is the tree |
//! | `progress` | whole numbers for people who wait |
//! | `random_lives` | files that change at random between backups, for `examining` and `sky` |
//! | `replacing` | files that a program replaced when it saved them |
//! | `restoring` | the effect of a restore on a target |
//! | `second_look` | what a finder left, looked for in short blocks |
//! | `sky` | changes found by checksums that exist already |
//! | `trimming` | the client's own block checksums |
//! | `unmounted` | a real directory with its real log, not mounted: real changes, saved, verified and restored |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

mod alike;
mod examining;
mod faults;
mod following;
mod hostile;
mod many_files;
mod many_versions;
mod model;
mod on_btrfs;
mod overwritten;
mod path_list;
mod progress;
mod pulling;
mod pushing;
mod pushing_equal;
mod pushing_moves;
mod random_lives;
mod replacing;
mod restoring;
mod searching;
mod second_look;
mod sky;
mod trimming;
mod unmounted;
