//! Named points at which a test can have the agent killed, as a power cut would.
//!
//! With the feature `fault-points`, `TOWPATH_FAULT=<point>[:<n>]` makes the process send itself
//! SIGKILL when it reaches the point for the n-th time (the first, when nothing is said). A name
//! also stands for all points below it: `apply:7` is the seventh step of any kind. With
//! `TOWPATH_FAULT_FILE=<path>` the same is read from a file whenever a point is reached, so that a
//! test can ask for it while the agent runs; while there is no file, nothing happens. With
//! `TOWPATH_OLDER` the agent acts as one from before it had addresses of its own. Without the
//! feature nothing of this is compiled.

use std::fmt;

use ingress::Moment;
use loader::kernel::StepKind;

/// A point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before the first step of a plan.
    PlanBegin,
    /// After the last step of a plan.
    PlanEnd,
    /// Before a step of this kind.
    Apply(&'static str),
    /// After a step of this kind.
    Applied(&'static str),
    /// Before an endpoint's record is written to its temporary file.
    StoreWrite,
    /// Before the temporary file takes the record's name.
    StoreRename,
    /// An endpoint's record is in force, and a power cut may still undo it.
    StoreRenamed,
    /// Before the record of a lease or a cooldown is written to its temporary file.
    AddressesWrite,
    /// Before the temporary file takes the record's name.
    AddressesRename,
    /// Records of leases and cooldowns are written, and nothing that rests on them is done yet.
    AddressesWritten,
    /// An address is given to an endpoint, and only the agent's memory knows.
    EndpointAddLeased,
    /// A delete that the plugin left is carried out, and its file is still there.
    PendingDeleteDone,
    /// An endpoint that is being added is on disk, and not yet in the kernel.
    EndpointAddRecorded,
    /// An endpoint that is being deleted is off the disk, and still in the kernel.
    EndpointDelRecorded,
    /// A file of the CNI plugin's installation is empty, under its temporary name.
    CniWrite,
    /// It is written, and has its temporary name.
    CniRename,
    /// Before one is removed.
    CniRemove,
    /// While the agent's own addresses are requested, used or released.
    Ingress(Moment),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlanBegin => f.write_str("plan.begin"),
            Self::PlanEnd => f.write_str("plan.end"),
            Self::Apply(step) => write!(f, "apply.{step}"),
            Self::Applied(step) => write!(f, "applied.{step}"),
            Self::StoreWrite => f.write_str("store.write"),
            Self::StoreRename => f.write_str("store.rename"),
            Self::StoreRenamed => f.write_str("store.renamed"),
            Self::AddressesWrite => f.write_str("addresses.write"),
            Self::AddressesRename => f.write_str("addresses.rename"),
            Self::AddressesWritten => f.write_str("addresses.written"),
            Self::EndpointAddLeased => f.write_str("endpoint.add.leased"),
            Self::PendingDeleteDone => f.write_str("pending-delete.done"),
            Self::EndpointAddRecorded => f.write_str("endpoint.add.recorded"),
            Self::EndpointDelRecorded => f.write_str("endpoint.del.recorded"),
            Self::CniWrite => f.write_str("cni.write"),
            Self::CniRename => f.write_str("cni.rename"),
            Self::CniRemove => f.write_str("cni.remove"),
            Self::Ingress(moment) => write!(f, "ingress.{}", moment.name()),
        }
    }
}

/// Names of the kinds of steps, in the order in which [`StepKind`] has them.
pub const STEPS: [&str; 18] = [
    "set-sysctl",
    "set-mtu",
    "set-up",
    "create-endpoint-device",
    "delete-device",
    "add-address",
    "delete-address",
    "add-route",
    "delete-route",
    "add-rule",
    "delete-rule",
    "add-neighbour",
    "delete-neighbour",
    "put-map-entry",
    "delete-map-entry",
    "attach",
    "detach",
    "reserve-ports",
];

/// The name of a step's kind.
#[must_use]
pub fn step_name(step: &StepKind) -> &'static str {
    let position = match step {
        StepKind::SetSysctl(..) => 0,
        StepKind::SetMtu { .. } => 1,
        StepKind::SetUp(_) => 2,
        StepKind::CreateEndpointDevice(_) => 3,
        StepKind::DeleteDevice(_) => 4,
        StepKind::AddAddress(_) => 5,
        StepKind::DeleteAddress(_) => 6,
        StepKind::AddRoute(_) => 7,
        StepKind::DeleteRoute(_) => 8,
        StepKind::AddRule(_) => 9,
        StepKind::DeleteRule(_) => 10,
        StepKind::AddNeighbour(_) => 11,
        StepKind::DeleteNeighbour(_) => 12,
        StepKind::PutMapEntry(_) => 13,
        StepKind::DeleteMapEntry(_) => 14,
        StepKind::Attach(_) => 15,
        StepKind::Detach(_) => 16,
        StepKind::ReservePorts(_) => 17,
    };
    STEPS[position]
}

/// Every point.
pub fn points() -> impl Iterator<Item = Point> {
    let steps = STEPS
        .into_iter()
        .flat_map(|step| [Point::Apply(step), Point::Applied(step)]);
    [
        Point::PlanBegin,
        Point::PlanEnd,
        Point::StoreWrite,
        Point::StoreRename,
        Point::StoreRenamed,
        Point::AddressesWrite,
        Point::AddressesRename,
        Point::AddressesWritten,
        Point::EndpointAddLeased,
        Point::PendingDeleteDone,
        Point::EndpointAddRecorded,
        Point::EndpointDelRecorded,
        Point::CniWrite,
        Point::CniRename,
        Point::CniRemove,
    ]
    .into_iter()
    .chain(Moment::ALL.map(Point::Ingress))
    .chain(steps)
}

#[cfg(not(feature = "fault-points"))]
mod armed {
    /// Nothing is compiled in.
    #[inline(always)]
    pub fn reach(_point: super::Point) {}

    /// There is nothing to check.
    ///
    /// # Errors
    /// None.
    pub fn check() -> anyhow::Result<()> {
        Ok(())
    }

    /// False: every agent has addresses of its own.
    #[must_use]
    #[inline(always)]
    pub fn is_older() -> bool {
        false
    }
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::env;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{LazyLock, Mutex, PoisonError};

    use anyhow::{Context as _, Result, bail};
    use nix::sys::signal::{Signal, raise};

    use super::{Point, points};

    const VARIABLE: &str = "TOWPATH_FAULT";

    #[derive(Debug)]
    pub(super) struct Fault {
        name: String,
        /// Visits until the end; 0 once it has passed.
        left: AtomicU64,
    }

    static FAULT: LazyLock<Result<Option<Fault>, String>> =
        LazyLock::new(|| match env::var(VARIABLE) {
            Err(env::VarError::NotPresent) => Ok(None),
            Err(error) => Err(format!("{VARIABLE}: {error}")),
            Ok(text) => Fault::parse(&text)
                .map(Some)
                .map_err(|error| format!("{VARIABLE}: {error}")),
        });

    static IS_OLDER: LazyLock<bool> = LazyLock::new(|| env::var_os("TOWPATH_OLDER").is_some());

    const FILE_VARIABLE: &str = "TOWPATH_FAULT_FILE";

    static FILE: LazyLock<Option<Written>> =
        LazyLock::new(|| env::var_os(FILE_VARIABLE).map(|path| Written::new(path.into())));

    /// A fault that a file names.
    #[derive(Debug)]
    pub(super) struct Written {
        path: PathBuf,
        /// Last text of the file, and its fault.
        seen: Mutex<(String, Option<Fault>)>,
    }

    impl Written {
        pub(super) fn new(path: PathBuf) -> Self {
            Self {
                path,
                seen: Mutex::default(),
            }
        }

        /// True if this visit is the last one. A text that names no point is an error, so that the
        /// run does not continue without its fault.
        pub(super) fn visit(&self, point: Point) -> bool {
            let Ok(text) = fs::read_to_string(&self.path) else {
                return false;
            };
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.0 != text {
                let fault = match Fault::parse(text.trim()) {
                    Ok(fault) => Some(fault),
                    Err(error) => panic!("{}: {error:#}", Path::display(&self.path)),
                };
                *seen = (text, fault);
            }
            seen.1.as_ref().is_some_and(|fault| fault.visit(point))
        }
    }

    impl Fault {
        pub(super) fn parse(text: &str) -> Result<Self> {
            let (name, count) = match text.split_once(':') {
                None => (text, 1),
                Some((name, count)) => (name, count.parse().with_context(|| format!("{count:?}"))?),
            };
            let fault = Self {
                name: name.to_owned(),
                left: AtomicU64::new(count),
            };
            if count == 0 || !points().any(|point| fault.covers(point)) {
                let known: Vec<_> = points().map(|point| point.to_string()).collect();
                bail!(
                    "{text:?} is not <point>[:<n>]; the points are {}",
                    known.join(", ")
                );
            }
            Ok(fault)
        }

        pub(super) fn covers(&self, point: Point) -> bool {
            let point = point.to_string();
            point
                .strip_prefix(&self.name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        }

        /// True if this visit is the last one.
        pub(super) fn visit(&self, point: Point) -> bool {
            self.covers(point) && self.left.fetch_sub(1, Ordering::Relaxed) == 1
        }
    }

    /// True if the agent acts as one from before it had addresses of its own: it recognises none
    /// of them, and calls no delegated plugin for them.
    #[must_use]
    pub fn is_older() -> bool {
        *IS_OLDER
    }

    /// Marks that a point is reached. Does not return when it is the one.
    pub fn reach(point: Point) {
        let is_named = matches!(&*FAULT, Ok(Some(fault)) if fault.visit(point));
        let is_written = FILE.as_ref().is_some_and(|written| written.visit(point));
        if (is_named || is_written)
            && let Err(error) = raise(Signal::SIGKILL)
        {
            tracing::error!(%error, "SIGKILL");
        }
    }

    /// Checks the fault that the environment names.
    ///
    /// # Errors
    /// When it names no point.
    pub fn check() -> Result<()> {
        match &*FAULT {
            Ok(None) => Ok(()),
            Ok(Some(fault)) => {
                tracing::warn!(
                    point = fault.name,
                    "this agent will kill itself at a fault point"
                );
                Ok(())
            }
            Err(error) => bail!("{error}"),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_fault_counts_its_visits() {
            let fault = Fault::parse("apply:2").unwrap();
            assert!(!fault.visit(Point::Apply("add-route")));
            assert!(!fault.visit(Point::Applied("add-route")));
            assert!(!fault.visit(Point::PlanEnd));
            assert!(fault.visit(Point::Apply("add-rule")));
            assert!(!fault.visit(Point::Apply("add-rule")));
            assert!(
                Fault::parse("store.rename")
                    .unwrap()
                    .visit(Point::StoreRename)
            );
        }

        #[test]
        fn a_file_arms_and_disarms() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("fault");
            let written = Written::new(path.clone());
            assert!(!written.visit(Point::PlanBegin));
            fs::write(&path, "plan.begin:2\n").unwrap();
            assert!(!written.visit(Point::PlanEnd));
            assert!(!written.visit(Point::PlanBegin));
            assert!(written.visit(Point::PlanBegin));
            fs::write(&path, "plan.end").unwrap();
            assert!(!written.visit(Point::PlanBegin));
            assert!(written.visit(Point::PlanEnd));
            fs::remove_file(&path).unwrap();
            assert!(!written.visit(Point::PlanEnd));
        }

        #[test]
        fn what_names_no_point_is_refused() {
            for text in ["", "apply.nothing", "app", "apply:0", "apply:x", "apply."] {
                assert!(Fault::parse(text).is_err(), "{text:?}");
            }
        }
    }
}

pub use armed::{check, is_older, reach};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_distinct() {
        let names: BTreeSet<_> = points().map(|point| point.to_string()).collect();
        assert_eq!(names.len(), points().count());
        assert_eq!(step_name(&StepKind::SetUp(1)), "set-up");
        assert_eq!(step_name(&StepKind::DeleteDevice(1)), "delete-device");
    }
}
