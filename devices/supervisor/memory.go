package supervisor

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// memory is what a node must not forget about a device.
//
// On disk it is one line of text in <data>/devices/<id>, replaced as a whole by
// temp, fsync, rename, fsync of the directory:
//
//	fydev 1 dut-1 4711 4709 8c0ffee0\n
//	│     │ │     │    │    └ CRC-32 (IEEE) of all before the blank in front of it, 8 hex digits
//	│     │ │     │    └ highest revoked token
//	│     │ │     └ highest token
//	│     │ └ the device's id, so that a file under another name is noticed
//	│     └ version
//	└ magic
type memory struct {
	highest, revoked uint64 // revoked <= highest
}

const (
	memoryMagic   = "fydev"
	memoryVersion = 1
	maxMemory     = 256 // bytes; an id has 64 at most
)

// raise is the higher of both, field by field: memory never falls.
func (m memory) raise(o memory) memory {
	m.revoked = max(m.revoked, o.revoked)
	m.highest = max(m.highest, o.highest, m.revoked)
	return m
}

func (m memory) encode(id forgeyard.DeviceID) []byte {
	body := fmt.Sprintf("%s %d %s %d %d", memoryMagic, memoryVersion, id, m.highest, m.revoked)
	return fmt.Appendf(nil, "%s %08x\n", body, crc32.ChecksumIEEE([]byte(body)))
}

func decode(b []byte, id forgeyard.DeviceID) (memory, error) {
	line, ok := strings.CutSuffix(string(b), "\n")
	f := strings.Split(line, " ")
	if !ok || len(f) != 6 || f[0] != memoryMagic {
		return memory{}, corrupt("%d bytes are not a device's memory", len(b))
	}
	if f[1] != strconv.Itoa(memoryVersion) {
		return memory{}, corrupt("version %q; this build reads version %d", forgeyard.Clip(f[1], 10), memoryVersion)
	}
	highest, err1 := strconv.ParseUint(f[3], 10, 64)
	revoked, err2 := strconv.ParseUint(f[4], 10, 64)
	m := memory{highest, revoked}
	if err1 != nil || err2 != nil || revoked > highest || string(m.encode(id)) != string(b) {
		return memory{}, corrupt("the line %q does not agree with its checksum or with %s", forgeyard.Clip(line, 120), id)
	}
	return m, nil
}

func corrupt(format string, args ...any) error {
	return forgeyard.Errorf("device memory", forgeyard.Corrupt, format, args...)
}

// load reads the memory; a device that is new here has none.
func load(file string, id forgeyard.DeviceID) (memory, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return memory{}, nil
	}
	if err != nil {
		return memory{}, err
	}
	defer f.Close()
	b := make([]byte, maxMemory+1)
	n, err := f.Read(b)
	if err != nil && n == 0 {
		return memory{}, corrupt("cannot be read: %v", err)
	}
	return decode(b[:n], id)
}

// store replaces the memory. When it returns nil the bytes are on the disk.
func store(file string, id forgeyard.DeviceID, m memory) error {
	return durable.WriteFile(file, m.encode(id), 0o600)
}

func diskKind(err error) forgeyard.Kind {
	if durable.Full(err) {
		return forgeyard.NoSpace
	}
	return forgeyard.Unavailable
}
