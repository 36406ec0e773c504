// Package cursor decides which tests of a list are done, which remain, and what of an
// earlier epoch counts, from a file that grows by one line at each test's start and end.
//
//	plan     one test's id a line; its digest names the list
//	binding  what the results belong to: list, binary under test, isolation
//	cursor   records, one a line, each with a checksum of its own
//
// A record counts if its line is ended and its checksum matches. What a crash tore off at
// the end is dropped; damage before that is an error, for a crash does not make it. A test is
// completed by an `end`; one that only started is run again. Of several ends the later
// counts, so that a later failure cancels an earlier pass.
//
//	isolated   each test counts by itself
//	suite      a suite counts when all of it ended in one epoch; else all of it runs again
//	ordered    nothing counts in a later epoch
//
// Another list, binary or isolation makes older results Incompatible: every test runs again.
// The package is pure; package capture and the helper read and write the files.
package cursor

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// Bounds: the workload writes these files.
const (
	MaxTests = 100_000
	MaxID    = 1024 // bytes of one test's id
	MaxLine  = 8 << 10
	// MaxRecords allows each test a start and an end, and each to be run again several times.
	MaxRecords = 8 * MaxTests
	// MaxBytes bounds each of the three files: an upper bound of what is read at once.
	MaxBytes = 64 << 20
	sumChars = 16 // hex digits of a record's checksum
)

// Event of a record.
type Event string

// Events.
const (
	Start Event = "start"
	End   Event = "end"
)

// Outcome of a test.
type Outcome string

// Outcomes.
const (
	Pass  Outcome = "pass"
	Fail  Outcome = "fail"
	Skip  Outcome = "skip"
	Error Outcome = "error"
)

// Known reports whether it is one of the outcomes.
func (o Outcome) Known() bool { return o == Pass || o == Fail || o == Skip || o == Error }

// Bad reports whether the outcome fails the whole.
func (o Outcome) Bad() bool { return o == Fail || o == Error }

// Record is one line of the cursor, without its checksum. Times are milliseconds of Unix.
type Record struct {
	Seq      int     `json:"seq"` // grows over all epochs
	Epoch    uint64  `json:"epoch"`
	ID       string  `json:"id"`
	Event    Event   `json:"event"`
	Outcome  Outcome `json:"outcome,omitempty"` // of an end
	Started  int64   `json:"started,omitempty"`
	Ended    int64   `json:"ended,omitempty"`
	Evidence string  `json:"evidence,omitempty"` // where more is to be read
}

// sumKey stands between the rest of a line and its checksum.
const sumKey = `,"c":"`

// Line is the record as a line: the JSON of the rest, with the checksum as its last key.
func (r Record) Line() []byte {
	rest := checkpoint.CanonicalJSON(r)
	return fmt.Appendf(nil, "%s%s%s\"}\n", rest[:len(rest)-1], sumKey, checksum(rest))
}

// checksum is the first 16 hex digits of the BLAKE3 of a line without its key c.
func checksum(rest []byte) string {
	d := cas.Sum(rest)
	return hex.EncodeToString(d[:])[:sumChars]
}

// bad says what is wrong with the record by itself, or "".
func (r Record) bad() string {
	switch {
	case r.Seq < 1 || r.Seq > MaxRecords:
		return fmt.Sprintf("seq %d is not in [1, %d]", r.Seq, MaxRecords)
	case r.Epoch == 0:
		return "epoch 0: epochs start at 1"
	case r.Event != Start && r.Event != End:
		return fmt.Sprintf("event %q is not start or end", forgeyard.Clip(string(r.Event), 40))
	case r.Event == End && !r.Outcome.Known():
		return fmt.Sprintf("outcome %q is not pass, fail, skip or error", forgeyard.Clip(string(r.Outcome), 40))
	case r.Event == Start && r.Outcome != "":
		return "a start has no outcome"
	case r.Started < 0 || r.Ended < 0:
		return "a time before 1970"
	case len(r.Evidence) > checkpoint.MaxText:
		return fmt.Sprintf("evidence has %d bytes, the bound is %d", len(r.Evidence), checkpoint.MaxText)
	}
	return badID(r.ID)
}

func badID(id string) string {
	switch {
	case id == "":
		return "a test has no id"
	case len(id) > MaxID:
		return fmt.Sprintf("the id of a test has %d bytes, the bound is %d", len(id), MaxID)
	case !utf8.ValidString(id) || strings.ContainsAny(id, "\n\r\x00"):
		return fmt.Sprintf("test id %q is not one line of UTF-8", forgeyard.Clip(id, 80))
	}
	return ""
}

// Log is what a cursor's bytes say.
type Log struct {
	Records []Record
	Good    int // bytes up to which it counts; the rest was torn off
}

// Last is the number of the last record, 0: there is none.
func (l Log) Last() int {
	if n := len(l.Records); n > 0 {
		return l.Records[n-1].Seq
	}
	return 0
}

// Decode reads a cursor. A tail that is torn is left out; Good says where the next record
// belongs. Damage in the middle is Corrupt.
func Decode(b []byte) (Log, error) {
	var l Log
	if len(b) > MaxBytes {
		return l, forgeyard.Errorf("cursor", forgeyard.Limit, "%d bytes are more than the bound of %d", len(b), MaxBytes)
	}
	for n := 1; l.Good < len(b); n++ {
		end := bytes.IndexByte(b[l.Good:], '\n')
		if end < 0 {
			break
		}
		line := b[l.Good : l.Good+end]
		r, err := parseLine(line)
		if err != nil {
			if l.Good+end+1 == len(b) {
				break // the last one: a crash may have written its end and not its middle
			}
			return Log{}, forgeyard.Errorf("cursor", forgeyard.Corrupt, "line %d: %w", n, err)
		}
		if why := l.follows(r); why != "" {
			return Log{}, forgeyard.Errorf("cursor", forgeyard.Corrupt, "line %d: %s", n, why)
		}
		l.Records = append(l.Records, r)
		l.Good += end + 1
	}
	return l, nil
}

// follows says why r cannot be the next record, or "".
func (l Log) follows(r Record) string {
	n := len(l.Records)
	if n == 0 {
		return ""
	}
	switch last := l.Records[n-1]; {
	case n == MaxRecords:
		return fmt.Sprintf("more than %d records", MaxRecords)
	case r.Seq <= last.Seq:
		return fmt.Sprintf("seq %d after %d", r.Seq, last.Seq)
	case r.Epoch < last.Epoch:
		return fmt.Sprintf("epoch %d after %d", r.Epoch, last.Epoch)
	}
	return ""
}

// parseLine reads one line without its newline.
func parseLine(line []byte) (Record, error) {
	var r Record
	at := len(line) - len(sumKey) - sumChars - len(`"}`)
	if len(line) > MaxLine || at < 1 || string(line[at:at+len(sumKey)]) != sumKey || !bytes.HasSuffix(line, []byte(`"}`)) {
		return r, forgeyard.Errorf("record", forgeyard.Invalid, "it does not end with its checksum, or has more than %d bytes", MaxLine)
	}
	rest := append(line[:at:at], '}')
	if got := string(line[at+len(sumKey) : at+len(sumKey)+sumChars]); got != checksum(rest) {
		return r, forgeyard.Errorf("record", forgeyard.Corrupt, "checksum %q is not that of the line", got)
	}
	if err := checkpoint.StrictJSON("record", rest, MaxLine, &r); err != nil {
		return r, err
	}
	if why := r.bad(); why != "" {
		return r, forgeyard.Errorf("record", forgeyard.Invalid, "%s", why)
	}
	return r, nil
}

// Encode writes records as a cursor. What Decode would not read back is Limit: a line too long
// once it is written anew, or too much of all.
func Encode(records []Record) ([]byte, error) {
	if len(records) > MaxRecords {
		return nil, forgeyard.Errorf("cursor", forgeyard.Limit, "%d records are more than the bound of %d: split the list of tests", len(records), MaxRecords)
	}
	var b bytes.Buffer
	for _, r := range records {
		line := r.Line()
		if len(line)-1 > MaxLine {
			return nil, forgeyard.Errorf("cursor", forgeyard.Limit, "record %d has %d bytes, the bound is %d: shorten its id or its evidence", r.Seq, len(line)-1, MaxLine)
		}
		if n := b.Len() + len(line); n > MaxBytes {
			return nil, forgeyard.Errorf("cursor", forgeyard.Limit, "up to record %d the cursor of all epochs has %d bytes, the bound is %d: shorten the evidence, or split the list of tests", r.Seq, n, MaxBytes)
		}
		b.Write(line)
	}
	return b.Bytes(), nil
}

// Merge puts the records of one epoch behind what counts of those that it goes on from.
func Merge(before, now []Record, epoch uint64) ([]Record, error) {
	l := Log{Records: shrink(before)}
	last := Log{Records: before}
	for _, r := range now {
		if r.Epoch != epoch {
			return nil, forgeyard.Errorf("cursor", forgeyard.Invalid, "record %d is of epoch %d, this is %d", r.Seq, r.Epoch, epoch)
		}
		if why := cmp.Or(last.follows(r), l.follows(r)); why != "" {
			return nil, forgeyard.Errorf("cursor", forgeyard.Invalid, "%s: records are numbered on from $FORGEYARD_TEST_CURSOR_IN", why)
		}
		l.Records = append(l.Records, r)
	}
	return l.Records, nil
}

// shrink keeps of each test the last end, which takes the time of all before it, and a start
// in a later epoch, which cancels its suite. Fold comes to the same state by them, and a cursor
// does not grow with the epochs.
func shrink(records []Record) []Record {
	type kept struct {
		end, start int // index, -1: none
		took       int64
	}
	tests := map[string]kept{}
	for i, r := range records {
		k, ok := tests[r.ID]
		if !ok {
			k.end, k.start = -1, -1
		}
		switch {
		case r.Event == End:
			took := max(r.Ended-r.Started, 0)
			k.end, k.start, k.took = i, -1, min(k.took, math.MaxInt64-took)+took
		case k.end >= 0 && r.Epoch > records[k.end].Epoch:
			k.start = i
		}
		tests[r.ID] = k
	}
	var out []Record
	for i, r := range records {
		k := tests[r.ID]
		if i == k.end {
			r.Started = max(r.Ended-k.took, 0)
		}
		if i == k.end || i == k.start {
			out = append(out, r)
		}
	}
	return out
}
