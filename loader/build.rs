//! Builds the eBPF object that the agent embeds, through the function that `cargo xtask
//! build-ebpf` calls too.

use std::env;

use anyhow::{Context as _, Result};

fn main() -> Result<()> {
    for source in datapath_build::sources() {
        println!("cargo:rerun-if-changed={}", source.display());
    }
    println!("cargo:rerun-if-env-changed=EBPF_TOOLCHAIN");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("CARGO_CFG_TARGET_ARCH")?;
    let endian = env::var("CARGO_CFG_TARGET_ENDIAN").context("CARGO_CFG_TARGET_ENDIAN")?;
    let debug_log = env::var_os("CARGO_FEATURE_DEBUG_LOG").is_some();
    let object = datapath_build::build(&arch, &endian, debug_log)?;
    println!(
        "cargo:rustc-env=TOWPATH_DATAPATH_OBJECT={}",
        object.display()
    );
    Ok(())
}
