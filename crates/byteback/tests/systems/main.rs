//! Each source of checksums against the real system: it is started, a real file is written into it,
//! its checksums are extracted and compared with the bytes by `byteback checksums --verify`, and a
//! SkySync-F or -C sync is made with them.
//!
//! | part | content |
//! |---|---|
//! | `sky` | SkySync-F and -C between any two sources |
//! | `program` | running byteback |
//! | `tools` | the programs of storage systems, also with an interruption while they run |
//! | `server` | systems that a script starts, and requests to them |
//! | `meddling` | the network, with an action between requests |
//! | `plain` | a file without checksums, for the other end |
//! | `costs` | the cost of extraction, compared with summing and a whole sync: prints the table of docs/skysync.md |
//! | `btrfs` | btrfs, in an image file |
//! | `casync` | casync's index and store, and recipes made of it |
//! | `borg` | recipes of files in Borg |
//! | `machine` | a virtual machine, for features that this machine's kernel lacks (`evaluation/systems/machine`) |
//! | `fsverity` | sealed files, on ext4, F2FS and btrfs, in the virtual machine |
//! | `dmverity` | ext4 on a device that the kernel verifies, in the virtual machine |
//! | `moosefs` | MooseFS, in namespaces of its own (`evaluation/systems/moosefs`) |
//! | `zfs` | zfs-fuse, in namespaces of its own (`evaluation/systems/zfs`) |
//! | `ceph` | an OSD of Ceph on BlueStore (`evaluation/systems/ceph`), also with btrfs |
//! | `hdfs` | HDFS (`evaluation/systems/hdfs`), also with btrfs |
//! | `seaweedfs` | SeaweedFS (`evaluation/systems/seaweedfs`), also with btrfs |
//! | `s3` | MinIO (`evaluation/systems/minio`), also with btrfs |
//!
//! Systems whose installation takes long are started by `make test-systems` only; their tests are
//! ignored otherwise. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

#[path = "../../../byteback-checksums/tests/btrfs/disk.rs"]
#[allow(dead_code, reason = "shared with other test targets, which use other parts of it")]
mod disk;

// The program's own network module.
#[path = "../../src/http.rs"]
mod network;

mod borg;
mod btrfs;
mod casync;
mod ceph;
mod costs;
mod dmverity;
mod fsverity;
mod hdfs;
mod machine;
mod meddling;
mod moosefs;
mod plain;
mod program;
mod s3;
mod seaweedfs;
mod server;
mod sky;
mod tools;
mod zfs;
