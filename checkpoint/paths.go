package checkpoint

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node/cas"
)

// Names in the two directories of the protocol (FYCP/1 §3).
const (
	MarkerName   = ".fy-checkpoint.json"
	RequestName  = "request.json"
	CriticalName = "critical"
	ProgressName = "progress.json"
	OutboxName   = "outbox"
	InboxName    = "inbox"
	stagedSuffix = ".tmp"
	jsonSuffix   = ".json"

	// In mode framework, in the checkpoint directory and in a payload.
	PlanName    = "plan"
	BindingName = "binding.json"
	CursorName  = "cursor.jsonl"
	// AckName tells in the control directory up to which record the site has a cursor.
	AckName = "cursor.json"
)

// Environment variables of the protocol (FYCP/1 §2). EnvFormat is ours: the declared
// format, so that the helper need not be told it at each commit.
const (
	EnvProtocol      = "FORGEYARD_CKPT_PROTOCOL"
	EnvMode          = "FORGEYARD_CKPT_MODE"
	EnvAttempt       = "FORGEYARD_ATTEMPT_ID"
	EnvEpoch         = "FORGEYARD_EPOCH"
	EnvResumeID      = "FORGEYARD_RESUME_ID"
	EnvInterruptions = "FORGEYARD_INTERRUPTIONS"
	EnvFence         = "FORGEYARD_FENCE"
	EnvCkptDir       = "FORGEYARD_CKPT_DIR"
	EnvRestoreDir    = "FORGEYARD_RESTORE_DIR"
	EnvRestoreID     = "FORGEYARD_RESTORE_ID"
	EnvRestoreSeq    = "FORGEYARD_RESTORE_SEQ"
	EnvRestoreFormat = "FORGEYARD_RESTORE_FORMAT"
	EnvCtlDir        = "FORGEYARD_CTL_DIR"
	EnvInterval      = "FORGEYARD_CKPT_INTERVAL_SECONDS"
	EnvWindow        = "FORGEYARD_CKPT_WINDOW_SECONDS"
	EnvMaxBytes      = "FORGEYARD_CKPT_MAX_BYTES"
	EnvExitCode      = "FORGEYARD_CKPT_EXIT_CODE"
	EnvRejectCode    = "FORGEYARD_CKPT_REJECT_CODE"
	EnvFormat        = "FORGEYARD_CKPT_FORMAT"
	EnvStopGrace     = "FORGEYARD_STOP_GRACE_SECONDS"
	EnvMark          = "FORGEYARD_MARK"
	EnvTestPlan      = "FORGEYARD_TEST_PLAN"
	EnvTestCursorIn  = "FORGEYARD_TEST_CURSOR_IN"
	EnvTestCursorOut = "FORGEYARD_TEST_CURSOR_OUT"
	EnvTestIsolation = "FORGEYARD_TEST_ISOLATION"
	EnvTestList      = "FORGEYARD_TEST_LIST_DIGEST"
	EnvSlurmRestarts = "SLURM_RESTART_COUNT" // of profile slurm
)

// ProtocolVersion is FYCP/1.
const ProtocolVersion = 1

// SlotName is the directory of a sealed checkpoint: six digits.
func SlotName(seq int) string { return fmt.Sprintf("%06d", seq) }

// StagedName is the same before it is sealed.
func StagedName(seq int) string { return SlotName(seq) + stagedSuffix }

// ParseSlot reads a slot's name, sealed or staged.
func ParseSlot(name string) (seq int, sealed, ok bool) {
	digits, staged := strings.CutSuffix(name, stagedSuffix)
	seq, ok = parseSix(digits)
	return seq, ok && !staged, ok
}

// MessageName is the file of message or answer n.
func MessageName(n int) string { return SlotName(n) + jsonSuffix }

// ParseMessageName reads it back.
func ParseMessageName(name string) (n int, ok bool) {
	digits, ok := strings.CutSuffix(name, jsonSuffix)
	if !ok {
		return 0, false
	}
	return parseSix(digits)
}

func parseSix(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > MaxSeq || SlotName(n) != s {
		return 0, false
	}
	return n, true
}

// badPath says why p cannot be the path of a payload's file, or "".
func badPath(p string) string {
	switch {
	case p == "" || p == ".":
		return "is empty"
	case len(p) > MaxPath:
		return fmt.Sprintf("has %d bytes, the bound is %d", len(p), MaxPath)
	case !utf8.ValidString(p):
		return "is not UTF-8"
	case strings.HasPrefix(p, "/"):
		return "is absolute"
	case strings.ContainsAny(p, "\x00\\"):
		return "holds a NUL or a backslash"
	case p == ".." || strings.HasPrefix(p, "../") || path.Clean(p) != p:
		return "is not a clean path below its root"
	case strings.Count(p, "/") >= MaxDepth:
		return fmt.Sprintf("nests deeper than %d", MaxDepth)
	case p == MarkerName:
		return "is the marker's own"
	}
	for c := range strings.SplitSeq(p, "/") {
		if len(c) > cas.MaxNameBytes {
			return fmt.Sprintf("has a name of %d bytes, the bound is %d", len(c), cas.MaxNameBytes)
		}
	}
	return ""
}
