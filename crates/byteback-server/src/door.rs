//! The door decides which connections may stay, so that strangers cannot keep devices out.
//!
//! A connection is a *stranger's* until a request on it has shown a valid token; then it is a
//! *member's*. Both kinds have places of their own. No connection waits for a place: a stranger is
//! always admitted, and when the strangers' places are full, the oldest stranger makes room. One
//! address has a share of these places; above it, its own oldest connection goes. When all of them
//! are taken, the oldest connection of the address that holds most goes, so that many connections
//! from few addresses never cost another address its only one. Connections of members are never
//! closed to make room. A request that would make one more member than there are places is refused,
//! and its connection stays a stranger's.
//!
//! An IPv6 address counts by its first 64 bits: one customer of a provider has at least that
//! prefix.
//!
//! A connection that has to go finds out through its [`Exit`]: its reader and its writer are woken
//! and get an error. Its place is free at once, whether or not it has been closed yet.

use crate::metrics::Metrics;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Limits of open connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DoorLimits {
    /// Connections that have shown a valid token.
    pub(crate) members_max: usize,
    /// Connections that have not.
    pub(crate) strangers_max: usize,
    /// Strangers from one address.
    pub(crate) strangers_per_address_max: usize,
}

/// The places of connections; see the module's header.
#[derive(Debug)]
pub(crate) struct Door {
    limits: DoorLimits,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the newest connection; a smaller number is an older connection.
    newest: u64,
    strangers: BTreeMap<u64, Stranger>,
    /// The strangers of each address; no set is empty.
    addresses: HashMap<IpAddr, BTreeSet<u64>>,
    members: HashSet<u64>,
}

#[derive(Debug)]
struct Stranger {
    address: IpAddr,
    exit: Arc<Exit>,
}

/// Tells a connection that it has to go.
#[derive(Debug, Default)]
pub(crate) struct Exit {
    is_shown: AtomicBool,
    reader: Mutex<Option<Waker>>,
    writer: Mutex<Option<Waker>>,
}

/// A connection's place.
#[derive(Debug)]
pub(crate) struct Guest {
    door: Arc<Door>,
    number: AtomicU64,
    address: IpAddr,
    exit: Arc<Exit>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of an address that counts as one address.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

impl Exit {
    /// Whether the connection has to go; if not, the reader is woken when it has to.
    pub(crate) fn is_shown_to_reader(&self, waker: &Waker) -> bool {
        self.is_shown_to(&self.reader, waker)
    }

    /// Whether the connection has to go; if not, the writer is woken when it has to.
    pub(crate) fn is_shown_to_writer(&self, waker: &Waker) -> bool {
        self.is_shown_to(&self.writer, waker)
    }

    fn is_shown_to(&self, slot: &Mutex<Option<Waker>>, waker: &Waker) -> bool {
        // The waker is stored first, so that an exit that is shown in between wakes it.
        let mut slot = locked(slot);
        match &mut *slot {
            Some(known) => known.clone_from(waker),
            None => *slot = Some(waker.clone()),
        }
        drop(slot);
        self.is_shown.load(Ordering::Acquire)
    }

    fn show(&self) {
        self.is_shown.store(true, Ordering::Release);
        for slot in [&self.reader, &self.writer] {
            if let Some(waker) = locked(slot).take() {
                waker.wake();
            }
        }
    }
}

impl Door {
    pub(crate) fn new(limits: DoorLimits, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            metrics,
            state: Mutex::default(),
        })
    }

    /// Admits a new connection from `address`.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Guest {
        let address = counted(address);
        let exit = Arc::new(Exit::default());
        let mut state = locked(&self.state);
        let number = self.add_stranger(&mut state, address, &exit);
        self.count(&state);
        drop(state);
        Guest {
            door: Arc::clone(self),
            number: AtomicU64::new(number),
            address,
            exit,
        }
    }

    /// Frees a descriptor by turning out the stranger that would go next.
    pub(crate) fn make_room(&self) {
        let mut state = locked(&self.state);
        self.turn_out_of_heaviest(&mut state);
        self.count(&state);
    }

    fn add_stranger(&self, state: &mut State, address: IpAddr, exit: &Arc<Exit>) -> u64 {
        let held = |state: &State| state.addresses.get(&address).map_or(0, BTreeSet::len);
        while held(state) >= self.limits.strangers_per_address_max.max(1) {
            let oldest = state.addresses.get(&address).and_then(BTreeSet::first).copied();
            self.turn_out(state, oldest);
        }
        while state.strangers.len() >= self.limits.strangers_max.max(1) {
            self.turn_out_of_heaviest(state);
        }
        state.newest += 1;
        let number = state.newest;
        let exit = Arc::clone(exit);
        state.strangers.insert(number, Stranger { address, exit });
        state.addresses.entry(address).or_default().insert(number);
        number
    }

    fn turn_out_of_heaviest(&self, state: &mut State) {
        let weigh = |numbers: &BTreeSet<u64>| {
            let oldest = numbers.first().copied()?;
            Some((numbers.len(), std::cmp::Reverse(oldest)))
        };
        let heaviest = state.addresses.values().filter_map(weigh).max();
        self.turn_out(state, heaviest.map(|(_, std::cmp::Reverse(oldest))| oldest));
    }

    fn turn_out(&self, state: &mut State, number: Option<u64>) {
        if let Some(stranger) = number.and_then(|number| state.remove_stranger(number)) {
            stranger.exit.show();
            self.metrics.stranger_turned_out();
        }
    }

    fn count(&self, state: &State) {
        self.metrics.at_the_door(state.strangers.len(), state.members.len());
    }
}

impl State {
    fn remove_stranger(&mut self, number: u64) -> Option<Stranger> {
        let stranger = self.strangers.remove(&number)?;
        if let Some(numbers) = self.addresses.get_mut(&stranger.address) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.addresses.remove(&stranger.address);
            }
        }
        Some(stranger)
    }
}

impl Guest {
    pub(crate) fn exit(&self) -> &Exit {
        &self.exit
    }

    pub(crate) fn is_member(&self) -> bool {
        locked(&self.door.state).members.contains(&self.number())
    }

    /// Makes the connection a member's, after a valid token. False: there is no place for one more
    /// member, or the connection has to go.
    pub(crate) fn becomes_member(&self) -> bool {
        let number = self.number();
        let mut state = locked(&self.door.state);
        if state.members.contains(&number) {
            return true;
        }
        if state.members.len() >= self.door.limits.members_max {
            self.door.metrics.member_refused();
            return false;
        }
        if state.remove_stranger(number).is_none() {
            return false;
        }
        state.members.insert(number);
        self.door.count(&state);
        true
    }

    /// Makes the connection a stranger's, after a token that is not, or no longer, valid.
    pub(crate) fn becomes_stranger(&self) {
        let mut state = locked(&self.door.state);
        if state.members.remove(&self.number()) {
            // It becomes the newest of the strangers, so that the refusal arrives.
            let number = self.door.add_stranger(&mut state, self.address, &self.exit);
            self.number.store(number, Ordering::Relaxed);
            self.door.count(&state);
        }
    }

    fn number(&self) -> u64 {
        // Changed under the lock of the state, by consecutive requests of one connection.
        self.number.load(Ordering::Relaxed)
    }

    /// Frees the place of a closed connection.
    pub(crate) fn leave(&self) {
        let number = self.number();
        let mut state = locked(&self.door.state);
        if state.remove_stranger(number).is_some() || state.members.remove(&number) {
            self.door.count(&state);
        }
    }
}

#[cfg(test)]
mod tests;
