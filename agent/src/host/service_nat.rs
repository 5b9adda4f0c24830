//! The recording of flows of the host's stack, and their renewal.

use std::net::IpAddr;

use std::time::{Duration, Instant};

use anyhow::Result;
use api::types::ServiceNat as Mode;
use api::types::ServiceNatStatus;
use datapath_common::abi::DEFAULT_STACK;
use loader::bpf::{Datapath, DatapathMode, LEAST_NOTES, StackNotes};
use loader::netfilter::service_nat::{Detector, Evidence, Renewal};

/// The loss for pods where the configuration names no services.
const NO_SERVICES: &str = "services.cidrs and services.addresses are empty: packets to a service's address leave the node untranslated (node ports and host ports work)";

/// Maximum number of flow marks, equal to that of translated flows. The kernel always uses 16 bytes
/// for each.
const MOST_NOTES: u32 = 4_194_304;
/// The time until the next try after the programs could not be loaded.
const RETRY: Duration = Duration::from_secs(30);
/// The time after the begin of recording at which flows of that time are recorded, though no pass
/// ends clean.
const SETTLED: Duration = Duration::from_secs(10);

/// The recording of flows of the host's stack.
pub(crate) struct ServiceNat {
    mode: Mode,
    /// Room for notes once they are kept.
    room: u32,
    /// True if the configuration names services.
    knows_services: bool,
    detector: Detector,
    /// The evidence; none before the first check.
    evidence: Option<Evidence>,
    is_on: bool,
    notes: Option<StackNotes>,
    /// Flows of pods that the datapath does not know yet, until a pass leaves nothing to do.
    renewal: Option<Renewal>,
    /// When that was begun.
    renewed: Option<Instant>,
    /// When the programs could not be loaded.
    refused: Option<Instant>,
    /// The last error, which was logged then.
    error: Option<String>,
}

impl ServiceNat {
    /// State after the first check. If all pod traffic takes the stack, no flow is marked.
    /// `entries` is the maximum number of conntrack entries.
    pub(crate) fn new(
        mode: Mode,
        path: DatapathMode,
        knows_services: bool,
        entries: Option<u32>,
    ) -> Self {
        let mut this = Self {
            room: room(entries),
            knows_services,
            mode: if path == DatapathMode::Stack {
                Mode::Off
            } else {
                mode
            },
            detector: Detector::default(),
            evidence: None,
            is_on: false,
            notes: None,
            renewal: None,
            renewed: None,
            refused: None,
            error: None,
        };
        this.is_on = this.is_wanted();
        this
    }

    /// Room for notes, as long as it is as it is: while none are kept, next to nothing.
    pub(crate) fn capacity(&self) -> u32 {
        if self.is_on { self.room } else { LEAST_NOTES }
    }

    /// True if flows are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Sets the map of flow marks, and marks the flows in conntrack, before any program looks up
    /// marks.
    pub(crate) fn start(&mut self, notes: StackNotes) {
        self.notes = Some(notes);
        if self.is_on {
            self.renew();
        }
    }

    /// Checks if flow marks are to be kept from now on. Then it reloads the programs, and the next
    /// plan replaces the running ones. Once on, marks stay on.
    pub(crate) fn look(&mut self, datapath: &mut Datapath) -> bool {
        let is_late = |time: &Option<Instant>, after| time.is_some_and(|at| at.elapsed() > after);
        if is_late(&self.renewed, SETTLED) {
            self.settled();
        }
        let may_try = self.refused.is_none() || is_late(&self.refused, RETRY);
        if !self.is_on && may_try && self.is_wanted() {
            match datapath.keep_notes(self.room) {
                Ok(()) => {
                    self.is_on = true;
                    let evidence = self.evidence.as_ref().map(ToString::to_string);
                    tracing::info!(evidence, "flows of service NAT are recorded from now on");
                    self.renew();
                }
                Err(error) => {
                    self.refused = Some(Instant::now());
                    self.failed(&error);
                }
            }
        }
        self.is_on
    }

    /// Notes the flows of a pod that the datapath has come to know.
    pub(crate) fn known(&mut self, pod: IpAddr) {
        if let (Some(renewal), Some(notes)) = (&mut self.renewal, &self.notes)
            && let Err(error) = renewal.known(notes, pod)
        {
            self.failed(&error);
        }
    }

    /// Notes that a pass left nothing to do, so the programs that mark flows run. Flows that began
    /// since the last read of conntrack are marked as well.
    pub(crate) fn settled(&mut self) {
        if self.renewal.is_some() {
            self.renew();
            self.renewal = None;
            self.renewed = None;
        }
    }

    /// For the status.
    pub(crate) fn status(&self) -> ServiceNatStatus {
        ServiceNatStatus {
            mode: self.mode,
            notes: self.is_on,
            evidence: self.evidence.as_ref().map(ToString::to_string),
            missed: None,
            warning: (self.is_on && !self.knows_services).then(|| NO_SERVICES.to_owned()),
            error: self.error.clone(),
        }
    }

    fn is_wanted(&mut self) -> bool {
        match self.mode {
            Mode::On => true,
            Mode::Off => false,
            Mode::Auto => {
                match self.detector.evidence() {
                    Ok(evidence) => self.evidence = evidence,
                    Err(error) => self.failed(&error),
                }
                self.evidence.is_some()
            }
        }
    }

    fn renew(&mut self) {
        let Some(notes) = &self.notes else {
            return;
        };
        let renewal: Result<Renewal> = Renewal::begin(notes);
        match renewal {
            Ok(renewal) => {
                self.renewal = Some(renewal);
                self.renewed = Some(Instant::now());
                self.error = None;
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &anyhow::Error) {
        let error = format!("{error:#}");
        if self.error.as_ref() != Some(&error) {
            tracing::warn!("connections of service NAT may not be recorded: {error}");
            self.error = Some(error);
        }
    }
}

/// Room for flow marks, from the maximum number of conntrack entries: two for each, because marks
/// live longer, and a pod's flow to a node port has two.
fn room(entries: Option<u32>) -> u32 {
    // 0 means no limit.
    let entries = entries.filter(|most| *most > 0).unwrap_or(DEFAULT_STACK);
    entries.saturating_mul(2).clamp(LEAST_NOTES, MOST_NOTES)
}
