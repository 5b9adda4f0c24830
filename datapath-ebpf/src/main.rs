//! Towpath's eBPF programs.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod programs {
    use aya_ebpf::bindings::TC_ACT_UNSPEC;
    use aya_ebpf::macros::classifier;
    use aya_ebpf::programs::TcContext;

    #[classifier]
    pub fn from_endpoint(_ctx: TcContext) -> i32 {
        TC_ACT_UNSPEC
    }

    #[panic_handler]
    fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
