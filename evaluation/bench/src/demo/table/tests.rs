use super::*;

#[test]
fn sizes_and_times_have_three_figures() {
    let sizes = [
        0,
        1023,
        1024,
        1536,
        10 << 10,
        1_048_576,
        (1 << 20) - 1,
        1_536 << 20,
        u64::MAX,
    ];
    let texts = sizes.map(bytes);
    assert_eq!(texts[..5], ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "10.0 KiB"]);
    assert_eq!(texts[5..8], ["1.00 MiB", "1.00 MiB", "1.50 GiB"]);
    assert_eq!(
        [0.000_4, 0.012_34, 0.999_9, 12.345, 123.4].map(seconds),
        ["0.40 ms", "12.3 ms", "1.00 s", "12.3 s", "123 s"]
    );
}

#[test]
fn columns_are_aligned() {
    let rows = [
        ("read", "1.00 MiB".to_owned(), "1 GiB".to_owned()),
        ("wall time", "2 s".to_owned(), "10.0 s".to_owned()),
    ];
    let lines = [
        "             Byteback   rsync",
        "  read       1.00 MiB   1 GiB",
        "  wall time       2 s  10.0 s",
        "",
    ];
    let expected = lines.join("\n");
    assert_eq!(table("Byteback", "rsync", &rows), expected);
}
