//! The machine of the measurements.

use std::fs;

use serde::Serialize;

/// The properties of a machine that figures depend on.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    /// Version of the kernel.
    kernel: String,
    /// Model of the processor.
    processor: String,
    /// Number of processors.
    processors: usize,
    /// Memory in MiB.
    memory: u64,
}

impl Machine {
    /// This machine; unknown properties are empty.
    pub(super) fn read() -> Self {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let models = || field(&processors, "model name");
        let memory = read("/proc/meminfo");
        let kibibytes = field(&memory, "MemTotal").next();
        let kibibytes = kibibytes.and_then(|text| text.trim_end_matches(" kB").parse().ok());
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: models().next().unwrap_or_default().to_owned(),
            processors: field(&processors, "processor").count(),
            memory: kibibytes.unwrap_or(0_u64) / 1024,
        }
    }
}

/// The values of a field in lines of `name: value`.
fn field<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(move |(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::{Machine, field};

    #[test]
    fn fields_are_found_by_their_name() {
        let text = "processor\t: 0\nmodel name\t: A b: c\n\nprocessor\t: 1\n";
        assert_eq!(field(text, "processor").collect::<Vec<_>>(), ["0", "1"]);
        assert_eq!(field(text, "model name").next(), Some("A b: c"));
    }

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let machine = Machine::read();
        assert!(
            !machine.kernel.is_empty() && machine.memory > 0,
            "{machine:?}"
        );
    }
}
