//! Programs of the datapath that the kernel interprets.

use datapath_common::counter::Program;

/// Programs that the kernel did not compile to machine code when it loaded them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interpreted {
    /// The programs.
    pub(crate) programs: Vec<Program>,
    /// True if the kernel's compiler (JIT) was on; `None` where that cannot be read.
    pub(crate) jit: Option<bool>,
}

impl Interpreted {
    /// The problem, with its cause and its remedy; none without such programs.
    pub(crate) fn problem(&self) -> Option<String> {
        const OFF: &str = "set net.core.bpf_jit_enable to 1 and restart the agent";
        const GAVE_UP: &str = "report the kernel's release and its log";
        if self.programs.is_empty() {
            return None;
        }
        let programs: Vec<_> = self.programs.iter().map(|program| program.name()).collect();
        let cause = match self.jit {
            Some(false) => format!("net.core.bpf_jit_enable is 0; {OFF}"),
            Some(true) => format!("its compiler (JIT) gave them up; {GAVE_UP}"),
            None => format!(
                "net.core.bpf_jit_enable of the host is 0, or the compiler (JIT) gave them up; \
                 {OFF}, and if that does not help, {GAVE_UP}"
            ),
        };
        Some(format!(
            "the kernel interprets {}, so each packet costs several times as much: {cause}",
            programs.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_are_interpreted_are_named_with_cause_and_remedy() {
        let of = |programs: &[Program], jit| {
            let programs = programs.to_vec();
            Interpreted { programs, jit }.problem()
        };
        for jit in [None, Some(false), Some(true)] {
            assert_eq!(of(&[], jit), None);
        }
        let both = [Program::FromEndpoint, Program::ToNetwork];
        let told = of(&both, Some(false)).unwrap();
        assert_eq!(
            told,
            "the kernel interprets from_endpoint, to_network, so each packet costs several times \
             as much: net.core.bpf_jit_enable is 0; set net.core.bpf_jit_enable to 1 and restart \
             the agent"
        );
        let told = of(&both, Some(true)).unwrap();
        assert!(
            told.ends_with(
                "its compiler (JIT) gave them up; report the kernel's release and its log"
            )
        );
        let told = of(&both, None).unwrap();
        let parts = [
            "of the host is 0",
            "gave them up",
            "restart the agent",
            "report",
        ];
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    }
}
