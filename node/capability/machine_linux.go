package capability

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/job/machine"
)

// maxLibc bounds how much of a C library is looked through for its version.
const maxLibc = 16 << 20

// machineFacts is what the state of a program may depend on, of this machine.
func machineFacts() *machine.Facts {
	var u unix.Utsname
	f := machineAt("/")
	if err := unix.Uname(&u); err == nil {
		f.Kernel = twoNumbers(unix.ByteSliceToString(u.Release[:]))
	}
	return f
}

// machineAt reads the root of a machine.
func machineAt(root string) *machine.Facts {
	return &machine.Facts{Libc: libc(root), CPU: instructionSets(filepath.Join(root, "proc/cpuinfo"))}
}

// twoNumbers is the class of a kernel: what is behind the second is a repair.
func twoNumbers(release string) string {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return release
	}
	minor, _, _ := strings.Cut(parts[1], "-")
	return parts[0] + "." + minor
}

var glibcVersion = regexp.MustCompile(`GNU C Library [^\n]{0,80}version ([0-9]+\.[0-9]+)`)

// libc is the C library that the sandbox shows: its name and version.
func libc(root string) string {
	for _, dir := range []string{"lib", "lib64", "usr/lib", "usr/lib64", "lib/*-linux-gnu*", "usr/lib/*-linux-gnu*"} {
		names, _ := filepath.Glob(filepath.Join(root, dir, "libc.so.6"))
		for _, n := range names {
			if v := versionIn(n); v != "" {
				return "glibc " + v
			}
		}
	}
	if names, _ := filepath.Glob(filepath.Join(root, "lib/ld-musl-*.so.1")); len(names) > 0 {
		return "musl"
	}
	return ""
}

func versionIn(name string) string {
	info, err := os.Stat(name)
	if err != nil || info.Size() > maxLibc {
		return ""
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	if m := glibcVersion.FindSubmatch(b); m != nil {
		return string(m[1])
	}
	return ""
}

// compiled are the instruction sets that compilers and libraries choose code by. The others
// that a kernel lists are its own affair, and change with it.
var compiled = []string{
	"adx", "aes", "avx", "avx2", "avx512", "avx_vnni", "amx", "bmi1", "bmi2", "f16c", "fma", "gfni", "lzcnt", "abm", "movbe", "pclmulqdq", "popcnt", "rdrand", "rdseed", "sha_ni", "sse4_1", "sse4_2", "ssse3", "vaes", "vpclmulqdq",
	"asimd", "atomics", "bf16", "crc32", "i8mm", "pmull", "sha1", "sha2", "sha3", "sha512", "sve", "sme",
}

func instructionSets(cpuinfo string) []string {
	b, err := os.ReadFile(cpuinfo)
	if err != nil {
		return nil
	}
	var out []string
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if k := strings.TrimSpace(key); k != "flags" && k != "Features" {
			continue
		}
		for _, w := range strings.Fields(value) {
			if slices.ContainsFunc(compiled, func(c string) bool {
				return w == c || (strings.HasPrefix(w, c) && (c == "avx512" || c == "amx" || c == "sve" || c == "asimd"))
			}) {
				out = append(out, w)
			}
		}
		break // the others have the same, or the kernel offers what all have
	}
	slices.Sort(out)
	return slices.Compact(out)
}
