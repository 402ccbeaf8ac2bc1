//! The engine against a real server over TCP and a tree that a script changes.
//!
//! | room | what is in it |
//! |---|---|
//! | `scripted_tree` | a tree in memory with a log as simple as can be, and its expected restored form |
//! | `rig` | server, proxy that cuts connections, scripted answers |
//! | `model` | random changes, backups and restores of every snapshot |
//! | `client` | what is repeated, what is not, what is counted |
//! | `faults` | connections cut anywhere, servers that die or are full, files that cannot be read |
//! | `engine` | continuous sync: a real mount that programs change at random, kept in sync with a server that dies and comes back |
//! | `examining` | whole files that are looked for in the server's version of them |
//! | `following` | everything is sent anew, by a log that the server does not know: as the difference from the files at the same paths there |
//! | `hostile` | answers that no honest server gives |
//! | `incoming` | changes by others since the cursor, fetched while connections break, without this device's own |
//! | `listening` | a folder's batches, heard of as they are applied |
//! | `local_tree`, `pushing`, `pulling` | real directories, changed at random, pushed to the server and pulled from it |
//! | `on_btrfs` | SkySync with the checksums of a real btrfs, mounted and not |
//! | `path_list` | a copy that follows the listed paths is the tree |
//! | `random_lives` | files that change at random between backups, for `examining` and `sky` |
//! | `restoring` | the effect of a restore on a target |
//! | `sky` | changes found by checksums that exist already |
//! | `trimming` | the client's own block checksums |
//! | `uploading` | groups of the sync queue as batches: chains of contents, lost answers, conflicts |
//! | `unmounted` | a real directory with its real log, not mounted: real changes, saved, verified and restored |

mod client;
mod engine;
mod examining;
mod faults;
mod folding;
mod folding_disk;
mod following;
mod hostile;
mod ignoring;
mod incoming;
mod listening;
mod local_tree;
mod model;
mod on_btrfs;
mod path_list;
mod progress;
mod pulling;
mod pushing;
mod random_lives;
mod receiving;
mod restoring;
mod rig;
mod scripted_tree;
mod sky;
mod tls;
mod trimming;
mod unmounted;
mod uploading;
