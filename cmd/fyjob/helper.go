package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// helper is what the environment says.
type helper struct {
	ctl, ckpt  string
	attempt    forgeyard.AttemptID
	epoch      uint64
	mode       checkpoint.Mode
	format     checkpoint.Format
	interval   time.Duration // 0: only when asked
	window     time.Duration
	maxBytes   int64
	restoreDir string // "": fresh
	restoreSeq int
	exitCode   int // asks to be started again
	// Of mode framework.
	testPlan, cursorIn, cursorOut, isolation string
	now                                      func() time.Time
	out                                      io.Writer
}

func newHelper(getenv func(string) string, now func() time.Time, out io.Writer) (*helper, error) {
	switch v := getenv(checkpoint.EnvProtocol); v {
	case "":
		return nil, exitf(exitOutside, "not under Forgeyard: %s is not set", checkpoint.EnvProtocol)
	case strconv.Itoa(checkpoint.ProtocolVersion):
	default:
		return nil, exitf(exitOutside, "%s is %q, this helper speaks %d", checkpoint.EnvProtocol, v, checkpoint.ProtocolVersion)
	}
	h := &helper{
		ctl: getenv(checkpoint.EnvCtlDir), ckpt: getenv(checkpoint.EnvCkptDir), attempt: forgeyard.AttemptID(getenv(checkpoint.EnvAttempt)),
		mode: checkpoint.Mode(getenv(checkpoint.EnvMode)), restoreDir: getenv(checkpoint.EnvRestoreDir),
		testPlan: getenv(checkpoint.EnvTestPlan), cursorIn: getenv(checkpoint.EnvTestCursorIn), cursorOut: getenv(checkpoint.EnvTestCursorOut), isolation: getenv(checkpoint.EnvTestIsolation),
		window: checkpoint.DefaultWindow, now: now, out: out,
	}
	if h.ctl == "" || h.ckpt == "" {
		return nil, exitf(exitOutside, "%s or %s is not set", checkpoint.EnvCtlDir, checkpoint.EnvCkptDir)
	}
	var bad error
	num := func(name string) int64 {
		s := getenv(name)
		if s == "" {
			return 0
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			bad = exitf(exitOutside, "%s=%q is no number", name, forgeyard.Clip(s, 40))
		}
		return n
	}
	h.epoch, h.maxBytes, h.restoreSeq = uint64(num(checkpoint.EnvEpoch)), num(checkpoint.EnvMaxBytes), int(num(checkpoint.EnvRestoreSeq))
	h.exitCode = int(num(checkpoint.EnvExitCode))
	h.interval = time.Duration(num(checkpoint.EnvInterval)) * time.Second
	if w := num(checkpoint.EnvWindow); w > 0 {
		h.window = time.Duration(w) * time.Second
	}
	if f := getenv(checkpoint.EnvFormat); f != "" && bad == nil {
		h.format, bad = parseFormat(f)
	}
	return h, bad
}

// parseFormat reads name:version.
func parseFormat(s string) (checkpoint.Format, error) {
	name, version, ok := strings.Cut(s, ":")
	v, err := strconv.Atoi(version)
	if !ok || name == "" || err != nil || v < 0 {
		return checkpoint.Format{}, exitf(exitUsage, "format %q is not NAME:VERSION", forgeyard.Clip(s, 40))
	}
	return checkpoint.Format{Name: name, Version: v}, nil
}

// parseProgress reads done or done/total.
func parseProgress(s string) (checkpoint.Progress, error) {
	done, total, both := strings.Cut(s, "/")
	var p checkpoint.Progress
	var err, err2 error
	p.Done, err = strconv.ParseInt(done, 10, 64)
	if both {
		p.Total, err2 = strconv.ParseInt(total, 10, 64)
	}
	if err != nil || err2 != nil || p.Done < 0 || p.Total < 0 {
		return p, exitf(exitUsage, "progress %q is not DONE or DONE/TOTAL", forgeyard.Clip(s, 40))
	}
	return p, nil
}

// request reads what the runner wants now. No file wants nothing.
func (h *helper) request() (checkpoint.Request, error) {
	b, err := os.ReadFile(filepath.Join(h.ctl, checkpoint.RequestName))
	if errors.Is(err, fs.ErrNotExist) {
		return checkpoint.Request{Kind: checkpoint.StopNone}, nil
	}
	if err != nil {
		return checkpoint.Request{}, err
	}
	return checkpoint.ParseRequest(b)
}

// memory is the helper's own file: when the last checkpoint was committed, and up to
// which request. It only advises; losing it costs an early or a late checkpoint.
type memory struct {
	Committed int64 `json:"committed_unix_ms"`
	Request   int   `json:"request_seq"`
	Asks      bool  `json:"asks_should"` // the program asks whether a checkpoint is wanted
	Told      int   `json:"told_seq"`    // up to which request it was told that one is
}

const memoryName = "fyjob.json"

func (h *helper) recall() (memory, bool) {
	var m memory
	b, err := os.ReadFile(filepath.Join(h.ctl, memoryName))
	return m, err == nil && json.Unmarshal(b, &m) == nil
}

func (h *helper) remember(m memory) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(h.ctl, memoryName), b)
}

// replaceFile writes a control file in one step. Two helpers at once each write a file
// of their own. Nothing here outlives the machine's next boot, so nothing is synced.
func replaceFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // After the rename there is nothing to remove.
	_, err = f.Write(b)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// post puts a message into the outbox and returns its number. Creating NNNNNN.tmp claims
// the number; a number is used once, even by helpers that run at the same time.
func (h *helper) post(m checkpoint.Message) (int, error) {
	m.Attempt, m.Epoch = h.attempt, h.epoch
	outbox, inbox := filepath.Join(h.ctl, checkpoint.OutboxName), filepath.Join(h.ctl, checkpoint.InboxName)
	n, err := highest(outbox, inbox)
	if err != nil {
		return 0, err
	}
	for n++; n <= checkpoint.MaxSeq; n++ {
		name := checkpoint.MessageName(n)
		claim := filepath.Join(outbox, name+".tmp")
		f, err := os.OpenFile(claim, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		// Somebody faster may have renamed the same claim away; the runner answers before
		// it lets go of a message.
		if exists(filepath.Join(outbox, name)) || exists(filepath.Join(inbox, name)) {
			if err := errors.Join(f.Close(), os.Remove(claim)); err != nil {
				return 0, err
			}
			continue
		}
		m.N = n
		_, err = f.Write(m.Encode())
		if err := errors.Join(err, f.Close()); err != nil {
			return 0, err
		}
		return n, os.Rename(claim, filepath.Join(outbox, name))
	}
	return 0, exitf(exitLimit, "%d messages in one epoch are the bound", checkpoint.MaxSeq)
}

// highest is the highest message number in some directories.
func highest(dirs ...string) (int, error) {
	top := 0
	for _, d := range dirs {
		entries, err := os.ReadDir(d)
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if n, ok := checkpoint.ParseMessageName(strings.TrimSuffix(e.Name(), ".tmp")); ok {
				top = max(top, n)
			}
		}
	}
	return top, nil
}

func exists(p string) bool { _, err := os.Lstat(p); return err == nil }

func (h *helper) print(s string) error {
	_, err := fmt.Fprintln(h.out, s)
	return err
}
