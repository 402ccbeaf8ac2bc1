use super::*;

#[test]
fn a_program_is_charged_with_its_work_and_its_childrens() {
    // 64 MiB are read by a child of the shell; the shell itself reads nothing of that size.
    let finished = run(program("sh").args(["-c", "head -c 67108864 /dev/zero | wc -c; true"])).unwrap();
    assert_eq!(finished.text(), "67108864\n");
    assert!(finished.cost.cpu_s > 0.001, "{:?}", finished.cost);
    assert!(
        finished.cost.read_bytes > 2 * 67_108_864 - 1_000_000,
        "{:?}",
        finished.cost
    );
    assert!(finished.cost.peak_bytes > 100_000, "{:?}", finished.cost);
    assert!(finished.wall_s > 0.0);
}

#[test]
fn a_failure_names_the_command_and_what_it_said() {
    let error = run(program("sh").args(["-c", "echo out; echo wrong >&2; exit 3"]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("sh -c") && error.contains("exit status: 3"), "{error}");
    assert!(error.contains("out\nwrong"), "{error}");
    let error = run(&mut program("/nonexistent/program")).unwrap_err().to_string();
    assert!(error.contains("could not be started"), "{error}");
}

#[test]
fn input_reaches_the_program() {
    let finished = run_with_input(&mut program("cat"), b"some\0bytes").unwrap();
    assert_eq!(finished.stdout, b"some\0bytes");
}

#[test]
fn a_background_process_tells_its_cost_and_stops() {
    let mut busy = Background::start("busy", program("sh").args(["-c", "while :; do :; done"])).unwrap();
    let first = wait_for("CPU time", Duration::from_secs(10), || {
        Ok(Some(busy.cost()?).filter(|cost| cost.cpu_s > 0.02))
    })
    .unwrap();
    assert!(!busy.has_ended());
    assert!(first.peak_bytes > 0 && first.read_bytes > 0, "{first:?}");
    let all = busy.stop().unwrap();
    assert!(all.cpu_s >= first.cpu_s - 0.01, "{all:?} after {first:?}");
    assert!(busy.has_ended());
    assert!(busy.cost().is_err());
}

#[test]
fn a_process_that_ended_by_itself_is_noticed() {
    let process = Background::start("true", &mut program("true")).unwrap();
    wait_for("its end", Duration::from_secs(10), || {
        Ok(process.has_ended().then_some(()))
    })
    .unwrap();
}

#[test]
fn fields_of_proc_files_are_found_by_their_whole_name() {
    let text = "VmHWMX:\t 1 kB\nVmHWM:\t  5120 kB\nrchar: 77\n";
    assert_eq!(proc_field(text, "VmHWM"), Some(5120));
    assert_eq!(proc_field(text, "rchar"), Some(77));
    assert_eq!(proc_field(text, "wchar"), None);
}

#[test]
fn watched_program_gives_lines_as_it_runs_and_with_the_result() {
    let mut lines = Vec::new();
    let shell = "printf 'one\\ntw'; sleep 0.3; printf 'o\\nthree'; sleep 0.3";
    let finished = run_watched(program("sh").args(["-c", shell]), |line| lines.push(line.to_owned())).unwrap();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(finished.text(), "one\ntwo\nthree");
}

#[test]
fn program_can_be_asked_to_end_though_signals_are_blocked_here() {
    // In a thread of its own, since the mask is the thread's.
    let status = thread::spawn(|| {
        // SAFETY: the set is initialised before it is used.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            assert_eq!(
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()),
                0
            );
        }
        let started = Instant::now();
        Background::start("sleep", program("sleep").arg("60"))
            .unwrap()
            .stop()
            .unwrap();
        assert!(run(program("sh").args(["-c", "kill -TERM $$; sleep 1"])).is_err());
        started.elapsed()
    });
    assert!(status.join().unwrap() < STOP_TIMEOUT / 2);
}
