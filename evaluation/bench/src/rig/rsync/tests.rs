use super::*;

const SAMPLE: &str = "
Number of files: 5 (reg: 4, dir: 1)
Number of created files: 0
Number of deleted files: 0
Number of regular files transferred: 2
Total file size: 4,294,967,999 bytes
Total transferred file size: 4,294,967,296 bytes
Literal data: 134,217,728 bytes
Matched data: 4,160,749,568 bytes
File list size: 0
Total bytes sent: 135,107,332
";

#[test]
fn stats_are_read_with_their_thousands() {
    let stats = Stats::parse(SAMPLE).unwrap();
    assert_eq!(stats.transferred_file_bytes, 4_294_967_296);
    assert_eq!(stats.literal_bytes, 134_217_728);
    assert_eq!(stats.matched_bytes, 4_160_749_568);
    assert_eq!(Stats::parse("rsync: something else"), None);
}

#[test]
fn a_transfer_is_done_counted_and_charged() {
    let work = tempfile::tempdir().unwrap();
    let (source, destination) = (work.path().join("source"), work.path().join("destination"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&destination).unwrap();
    let mut bytes = vec![0; 3 << 20];
    crate::random::Random::new(5).fill(&mut bytes);
    fs::write(source.join("file"), &bytes).unwrap();
    let rsync = Rsync::new(&destination, work.path());
    let options = ["-a", "--inplace", "--no-whole-file", "--ignore-times"];
    let first = rsync.transfer(&source, &options).unwrap();
    assert!(fs::read(destination.join("file")).unwrap() == bytes);
    assert_eq!(first.stats.literal_bytes, 3 << 20);
    assert!(
        first.wire.to_server > 3 << 20 && first.wire.to_server < (3 << 20) + 100_000,
        "{first:?}"
    );

    bytes[1_000_000..1_000_100].fill(7);
    fs::write(source.join("file"), &bytes).unwrap();
    let second = rsync.transfer(&source, &options).unwrap();
    assert!(fs::read(destination.join("file")).unwrap() == bytes);
    assert!(second.wire.total() < 200_000, "{second:?}");
    assert!(second.file_read_bytes() >= 3 << 20, "{second:?}");
    assert!(second.file_read_bytes() < 5 << 20, "{second:?}");
    assert!(second.server.read_bytes >= 3 << 20, "{second:?}");
    assert!(second.client.cpu_s > 0.0 && second.server.cpu_s > 0.0);
}
