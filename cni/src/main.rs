//! The CNI plugin `towpath-cni`; under the name `towpath-ipam`, the IPAM plugin.

use std::process::ExitCode;

fn main() -> ExitCode {
    towpath_cni::main()
}
