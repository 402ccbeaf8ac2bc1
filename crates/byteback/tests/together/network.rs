//! Network namespaces with a bridge between them. The server's namespace has the bridge; each
//! machine's has one link to it.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use byteback_testkit::command::run_by;

/// Address of the server, for all machines.
pub(crate) const SERVER: &str = "10.77.4.1";

/// Number of networks made so far: concurrent tests of one process get different ones.
static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// The namespaces; see the module. They are removed when this is dropped.
pub(crate) struct Network {
    /// The server's namespace, then those of the machines.
    names: Vec<String>,
}

/// The end of a link that is taken down: the machine's own (which is told at once that there is no
/// route), or the other one (packets are lost silently).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Machine,
    Bridge,
}

fn ip(arguments: &str) -> bool {
    let mut ip = Command::new("ip");
    ip.args(arguments.split(' ')).stderr(Stdio::null());
    ip.status().is_ok_and(|status| status.success())
}

impl Network {
    /// `None` where network namespaces cannot be made.
    pub(crate) fn new(machines: usize) -> Option<Self> {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id();
        let names = (0..=machines)
            .map(|end| format!("byteback-{id}-{number}-{end}"))
            .collect();
        let network = Self { names };
        let server = &network.names[0];
        let made = network.names.iter().all(|name| ip(&format!("netns add {name}")))
            && ip(&format!("-n {server} link add br0 type bridge"))
            && (1..=machines).all(|at| {
                let machine = &network.names[at];
                ip(&format!(
                    "link add eth0 netns {machine} type veth peer name port{at} netns {server}"
                ))
            });
        if !made {
            println!("network namespaces cannot be made here: the machines share one network, and no link is cut");
            return None;
        }
        assert!(ip(&format!("-n {server} addr add {SERVER}/24 dev br0")));
        assert!(ip(&format!("-n {server} link set br0 up")) && ip(&format!("-n {server} link set lo up")));
        // A server reports as its address the source address of its default route.
        assert!(ip(&format!("-n {server} route add default via 10.77.4.254")));
        for at in 1..=machines {
            let machine = &network.names[at];
            assert!(ip(&format!("-n {server} link set port{at} master br0")));
            assert!(ip(&format!("-n {machine} addr add 10.77.4.{}/24 dev eth0", 10 + at)));
            assert!(ip(&format!("-n {machine} link set lo up")));
            for end in [End::Machine, End::Bridge] {
                network.set(at - 1, end, true);
            }
        }
        Some(network)
    }

    /// Takes an end of a machine's link up or down.
    pub(crate) fn set(&self, machine: usize, end: End, is_up: bool) {
        let to = if is_up { "up" } else { "down" };
        let at = machine + 1;
        let done = match end {
            End::Machine => ip(&format!("-n {} link set eth0 {to}", self.names[at])),
            End::Bridge => ip(&format!("-n {} link set port{at} {to}", self.names[0])),
        };
        assert!(done, "the link of machine {machine} does not go {to} at {end:?}");
    }

    /// The command, on a machine; with `None`, where the server is. Only the network namespace is
    /// entered: mounts are visible to all.
    pub(crate) fn at(&self, machine: Option<usize>, command: &Command) -> Command {
        let name = &self.names[machine.map_or(0, |machine| machine + 1)];
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--net=/run/netns/{name}")).arg("--");
        run_by(nsenter, command)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
