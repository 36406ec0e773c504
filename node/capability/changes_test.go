package capability

import "testing"

// RA-111, RA-112: what the kernel says of the parts that a machine offers, and of nothing else.
func TestWordsOfHardware(t *testing.T) {
	for msg, want := range map[string]bool{
		"add@/devices/pci0000:00/0000:01:00.0\x00ACTION=add\x00SUBSYSTEM=pci\x00":        true,
		"change@/devices/pci0000:00/card0\x00ACTION=change\x00SUBSYSTEM=drm\x00SEQNUM=7": true,
		"remove@/devices/usb1/1-1/ttyUSB0\x00SUBSYSTEM=tty\x00":                          true,
		"add@/devices/virtual/net/veth0\x00SUBSYSTEM=net\x00":                            false,
		"add@/kernel/slab/x\x00SUBSYSTEM=slab\x00":                                       false,
		"move@/devices/usb1\x00SUBSYSTEM=usb\x00":                                        false,
		"libudev\x00\xfe\xed\xca\xfe\x00SUBSYSTEM=pci\x00":                               false,
		"add@/devices/pci0000:00":                                                        false,
		"":                                                                               false,
	} {
		if got := tellsOfHardware(msg); got != want {
			t.Errorf("%q: %v", msg, got)
		}
	}
}
