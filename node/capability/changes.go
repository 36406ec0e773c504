package capability

import "strings"

// hardware are the parts of the kernel whose words are about what can be offered: processors
// of graphics, and what hangs on the buses that devices hang on.
var hardware = map[string]bool{"accel": true, "cpu": true, "drm": true, "memory": true, "pci": true, "tty": true, "usb": true}

// tellsOfHardware reports whether a word of the kernel (`add@/devices/…`, then KEY=VALUE, each
// with a zero byte behind it) says that something of the machine came, went or is another.
func tellsOfHardware(msg string) bool {
	head, rest, _ := strings.Cut(msg, "\x00")
	action, _, ok := strings.Cut(head, "@")
	if !ok {
		return false // another program's word: those of the kernel begin so
	}
	switch action {
	case "add", "remove", "change", "bind", "unbind", "online", "offline":
	default:
		return false
	}
	for word := range strings.SplitSeq(rest, "\x00") {
		if s, ok := strings.CutPrefix(word, "SUBSYSTEM="); ok {
			return hardware[s]
		}
	}
	return false
}
