//! Virtual time, and whose turn it is.
//!
//! The simulated parts run on threads, as they do otherwise, but only one of them at a time: a
//! *task* runs until it would wait, for time or for news, and then gives the turn back. The
//! director (the test's own thread) runs the tasks in the order of their times, and does things of
//! its own only between them. So a run depends on the seed alone.
//!
//! A thread that a task has made and waits for (the one that sends parts of a batch) is not a task:
//! it never waits, and the task has the turn meanwhile.

use byteback_host::clock::Clock;
use byteback_host::random::SplitMix64;
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The wall clock's first reading: later than any file of this machine was changed.
const BEGAN_NS: i64 = 2_000_000_000_000_000_000;

/// A task that keeps the turn for longer is stuck.
const TURN_MAX: Duration = Duration::from_secs(240);

/// Two things at the same time come in any order within this.
const JITTER_NS: u64 = 2_000;

/// News for which a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing but the time.
    None,
    /// Something happened on this machine.
    Machine(usize),
    /// Something happened at the server.
    Server,
}

/// Panic payload that unwinds the thread of a killed task.
struct Killed;

struct Task {
    name: String,
    at_ns: u64,
    hears: News,
    is_killed: bool,
    /// Its machine sleeps until then.
    asleep_until_ns: u64,
    /// Wakes its thread, and no other: dozens of them wait while each of thousands of turns is
    /// taken.
    turn: Arc<Condvar>,
}

struct State {
    now_ns: u64,
    tasks: BTreeMap<u64, Task>,
    threads: BTreeMap<u64, JoinHandle<()>>,
    next: u64,
    running: Option<u64>,
    random: SplitMix64,
    trace: u64,
    is_reported: bool,
    failed: Option<Box<dyn Any + Send>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Director,
    Task(u64),
    Helper,
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Helper) };
}

/// Virtual time and the tasks in it: see the module.
pub(crate) struct World {
    state: Mutex<State>,
    /// A turn was given back.
    given_back: Condvar,
}

/// Gives the turn back when a task ends, in whatever way.
struct Turn<'a>(&'a World, u64);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.tasks.remove(&self.1);
        state.running = None;
        drop(state);
        self.0.given_back.notify_all();
    }
}

impl World {
    /// Whether the calling thread is not a task: it cannot wait.
    pub(crate) fn is_helper() -> bool {
        ROLE.get() == Role::Helper
    }

    /// A world that the calling thread directs.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        ROLE.set(Role::Director);
        Arc::new(Self {
            state: Mutex::new(State {
                now_ns: 0,
                tasks: BTreeMap::new(),
                threads: BTreeMap::new(),
                next: 0,
                running: None,
                random: SplitMix64::new(seed),
                trace: 0xcbf2_9ce4_8422_2325,
                is_reported: std::env::var_os("BYTEBACK_SIMULATION_TRACE").is_some(),
                failed: None,
            }),
            given_back: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clock(self: &Arc<Self>) -> Arc<dyn Clock> {
        self.wrong_clock(&Arc::default())
    }

    /// A clock that is wrong by `by_ns` nanoseconds.
    pub(crate) fn wrong_clock(self: &Arc<Self>, by_ns: &Arc<AtomicI64>) -> Arc<dyn Clock> {
        Arc::new(WorldClock(Arc::clone(self), Arc::clone(by_ns)))
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Hash of all events so far.
    pub(crate) fn trace(&self) -> u64 {
        self.lock().trace
    }

    /// Whether events are printed.
    pub(crate) fn is_reported(&self) -> bool {
        self.lock().is_reported
    }

    /// Notes an event. Not from helpers, which run at any time.
    pub(crate) fn note(&self, what: &str) {
        if ROLE.get() == Role::Helper {
            return;
        }
        let mut state = self.lock();
        let mut trace = state.trace ^ state.now_ns;
        for byte in what.bytes() {
            trace = (trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        state.trace = trace;
        if state.is_reported {
            eprintln!("{:>14.6} {what}", state.now_ns as f64 / 1e9);
        }
    }

    /// Starts a task, whose turn comes soon.
    pub(crate) fn spawn(self: &Arc<Self>, name: &str, work: impl FnOnce() + Send + 'static) -> u64 {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        let jitter = state.random.below(JITTER_NS);
        let turn = Arc::new(Condvar::new());
        let task = Task {
            name: name.to_owned(),
            at_ns: state.now_ns + jitter,
            hears: News::None,
            is_killed: false,
            asleep_until_ns: 0,
            turn: Arc::clone(&turn),
        };
        state.tasks.insert(id, task);
        let world = Arc::clone(self);
        let thread = std::thread::spawn(move || {
            ROLE.set(Role::Task(id));
            let held = Turn(&world, id);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                world.wait_for_turn(id, &turn, world.lock());
                work();
            }));
            if let Err(panic) = ended
                && !panic.is::<Killed>()
            {
                world.lock().failed.get_or_insert(panic);
            }
            drop(held);
        });
        state.threads.insert(id, thread);
        id
    }

    fn wait_for_turn(&self, id: u64, turn: &Condvar, mut state: MutexGuard<'_, State>) {
        while state.running != Some(id) {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_killed = state.tasks.get(&id).is_some_and(|task| task.is_killed);
        drop(state);
        if is_killed {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Lets time pass, and others have their turn, until it is over or there is news. For the
    /// director, only time passes.
    pub(crate) fn pause(&self, time: Duration, hears: News) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        match ROLE.get() {
            Role::Helper => {}
            Role::Director => {
                let mut state = self.lock();
                state.now_ns = state.now_ns.saturating_add(time_ns);
            }
            // A task that is being killed does not wait any more.
            Role::Task(_) if std::thread::panicking() => {}
            Role::Task(id) => {
                let mut state = self.lock();
                let jitter = state.random.below(JITTER_NS);
                let at_ns = state.now_ns.saturating_add(time_ns).saturating_add(jitter);
                let task = state.tasks.get_mut(&id).unwrap();
                (task.at_ns, task.hears) = (at_ns.max(task.asleep_until_ns), hears);
                let turn = Arc::clone(&task.turn);
                state.running = None;
                self.given_back.notify_all();
                self.wait_for_turn(id, &turn, state);
            }
        }
    }

    /// Wakes the tasks that wait for this news.
    pub(crate) fn tell(&self, news: News) {
        let mut state = self.lock();
        let state = &mut *state;
        for task in state.tasks.values_mut().filter(|task| task.hears == news) {
            let soon_ns = state.now_ns + state.random.below(JITTER_NS);
            task.at_ns = task.at_ns.min(soon_ns.max(task.asleep_until_ns));
        }
    }

    /// Suspends a task until then: its machine sleeps.
    pub(crate) fn suspend(&self, id: u64, until_ns: u64) {
        if let Some(task) = self.lock().tasks.get_mut(&id) {
            task.asleep_until_ns = until_ns;
            task.at_ns = task.at_ns.max(until_ns);
        }
    }

    /// Lets tasks run until this time.
    pub(crate) fn run_until(&self, until_ns: u64) {
        loop {
            let mut state = self.lock();
            if let Some(panic) = state.failed.take() {
                drop(state);
                resume_unwind(panic);
            }
            let next = state.tasks.iter().min_by_key(|(id, task)| (task.at_ns, **id));
            let Some((id, task)) = next
                .map(|(id, task)| (*id, task))
                .filter(|(_, task)| task.at_ns <= until_ns)
            else {
                state.now_ns = state.now_ns.max(until_ns);
                return;
            };
            state.now_ns = state.now_ns.max(task.at_ns);
            self.turn(id, state);
        }
    }

    /// Lets a task run until it waits again.
    fn turn(&self, id: u64, mut state: MutexGuard<'_, State>) {
        state.running = Some(id);
        if let Some(task) = state.tasks.get(&id) {
            task.turn.notify_one();
        }
        while state.running == Some(id) {
            let (again, timeout) = self
                .given_back
                .wait_timeout(state, TURN_MAX)
                .unwrap_or_else(PoisonError::into_inner);
            state = again;
            let name = state.tasks.get(&id).map(|task| task.name.clone());
            assert!(
                !timeout.timed_out() || state.running != Some(id),
                "task {name:?} does not give its turn back"
            );
        }
        let ended = match state.tasks.contains_key(&id) {
            true => None,
            false => state.threads.remove(&id),
        };
        drop(state);
        if let Some(thread) = ended {
            thread.join().unwrap();
        }
    }

    /// Whether a task still exists.
    pub(crate) fn lives(&self, id: u64) -> bool {
        self.lock().tasks.contains_key(&id)
    }

    /// Ends a task where it waits: only its destructors run after that.
    pub(crate) fn kill(&self, id: u64) {
        let mut state = self.lock();
        let Some(task) = state.tasks.get_mut(&id) else { return };
        task.is_killed = true;
        self.turn(id, state);
        assert!(!self.lives(id), "it lives");
    }

    /// Ends all tasks.
    pub(crate) fn end(&self) {
        loop {
            let first = self.lock().tasks.keys().next().copied();
            match first {
                Some(id) => self.kill(id),
                None => return,
            }
        }
    }
}

/// A clock that is wrong by a number of nanoseconds, which may change.
struct WorldClock(Arc<World>, Arc<AtomicI64>);

impl Clock for WorldClock {
    fn now_ns(&self) -> i64 {
        BEGAN_NS + i64::try_from(self.0.now_ns()).unwrap() + self.1.load(Ordering::SeqCst)
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn sleep(&self, duration: Duration) {
        self.0.pause(duration, News::None);
    }
}

#[test]
fn world_tasks_take_turns_by_time_and_end_where_killed() {
    let run = |seed| {
        let world = World::new(seed);
        let reported = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (name, every_ms) in [("a", 3), ("b", 5), ("c", 7)] {
            let (world2, reported) = (Arc::clone(&world), Arc::clone(&reported));
            tasks.push(world.spawn(name, move || {
                for _ in 0..10 {
                    world2.note(name);
                    reported.lock().unwrap().push((world2.now_ns() / 1_000_000, name));
                    world2.clock().sleep(Duration::from_millis(every_ms));
                }
            }));
        }
        let sleeper = {
            let world2 = Arc::clone(&world);
            world.spawn("news", move || {
                world2.pause(Duration::from_secs(1000), News::Machine(1));
                world2.note("woken");
            })
        };
        world.run_until(20_500_000);
        world.kill(tasks[2]);
        world.tell(News::Server);
        world.run_until(25_000_000);
        assert!(world.lives(sleeper));
        world.tell(News::Machine(1));
        world.run_until(60_000_000);
        assert!(!world.lives(sleeper) && !world.lives(tasks[0]));
        world.end();
        let reported = reported.lock().unwrap().clone();
        assert!(reported.is_sorted_by_key(|(at, _)| *at), "{reported:?}");
        let of = |name| reported.iter().filter(|(_, reported)| *reported == name).count();
        assert_eq!((of("a"), of("b"), of("c")), (10, 10, 3));
        world.trace()
    };
    assert_eq!(run(1), run(1));
    assert!((2..10).any(|seed| run(seed) != run(1)), "the order is always the same");
}
