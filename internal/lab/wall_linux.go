package lab

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// stub is what __vdso_clock_gettime becomes: the system call, and for CLOCK_REALTIME
// (0) the seconds from the slot on top.
//
//	b8 e4 00 00 00     mov  eax, 228         clock_gettime
//	0f 05              syscall               keeps edi and rsi
//	85 ff              test edi, edi
//	75 0a              jne  done
//	48 8b 0d <rel32>   mov  rcx, [rip+rel32] the slot
//	48 01 0e           add  [rsi], rcx       tv_sec
//	c3           done: ret
var stub = []byte{
	0xb8, 0xe4, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 0x0a,
	0x48, 0x8b, 0x0d, 0, 0, 0, 0, 0x48, 0x01, 0x0e, 0xc3,
}

const (
	stubRel  = 14 // where rel32 stands
	stubNext = 18 // what it counts from
)

// WallRefused says why wall clocks cannot be set wrong here; nil: they can.
func WallRefused() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("wall clocks are set wrong on amd64 only, and this is %s", runtime.GOARCH)
	}
	return nil
}

// wall is the clock of one process.
type wall struct {
	pid  int
	slot int64 // address of the seconds, aligned: a reader never sees half a change
}

// plantWall makes the wall clock of a process that has not run yet one of its own.
func plantWall(pid int) (wall, error) {
	mem, err := os.OpenFile(memOf(pid), os.O_RDWR, 0)
	if err != nil {
		return wall{}, err
	}
	defer func() { _ = mem.Close() }() // what was written is told by the writes
	lo, size, err := vdso(pid)
	if err != nil {
		return wall{}, err
	}
	image := make([]byte, size)
	if _, err := mem.ReadAt(image, lo); err != nil {
		return wall{}, fmt.Errorf("read the vDSO: %w", err)
	}
	at, room, err := function(image, "__vdso_clock_gettime")
	if err != nil {
		return wall{}, err
	}
	code := append([]byte(nil), stub...)
	slot := (at + len(code) + 7) &^ 7
	if slot+8 > at+room {
		return wall{}, fmt.Errorf("the vDSO's clock_gettime has %d bytes: too few", room)
	}
	binary.LittleEndian.PutUint32(code[stubRel:], uint32(slot-at-stubNext))
	code = append(code, make([]byte, slot+8-at-len(code))...)
	if _, err := mem.WriteAt(code, lo+int64(at)); err != nil {
		return wall{}, fmt.Errorf("write the vDSO: %w", err)
	}
	return wall{pid: pid, slot: lo + int64(slot)}, nil
}

// set makes the clock wrong by whole seconds, from now on.
func (w wall) set(off time.Duration) error {
	mem, err := os.OpenFile(memOf(w.pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = mem.Close() }() // as above
	_, err = mem.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(off/time.Second)), w.slot)
	return err
}

func memOf(pid int) string { return fmt.Sprintf("/proc/%d/mem", pid) }

// vdso finds the page that the kernel maps into every process.
func vdso(pid int) (at int64, size int, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }() // it was only read
	for s := bufio.NewScanner(f); s.Scan(); {
		var lo, hi int64
		if strings.HasSuffix(s.Text(), "[vdso]") {
			_, err := fmt.Sscanf(s.Text(), "%x-%x", &lo, &hi)
			return lo, int(hi - lo), err
		}
	}
	return 0, 0, fmt.Errorf("process %d has no vDSO", pid)
}

// function finds a symbol of an ELF image: its offset and its size.
func function(image []byte, name string) (at, size int, err error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, 0, fmt.Errorf("the vDSO: %w", err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, 0, fmt.Errorf("the vDSO: %w", err)
	}
	for _, s := range symbols {
		if s.Name == name && s.Value+s.Size <= uint64(len(image)) {
			return int(s.Value), int(s.Size), nil
		}
	}
	return 0, 0, fmt.Errorf("the vDSO has no %s", name)
}
