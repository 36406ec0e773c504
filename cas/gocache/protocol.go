package gocache

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// The commands of the protocol.
const (
	cmdGet   = "get"
	cmdPut   = "put"
	cmdClose = "close"
)

// Bounds of what the go command may say.
const (
	maxLine = 64 << 10 // a request has two hashes of at most 64 bytes
	maxID   = 64       // bytes of an action or output id
	maxBody = 24 << 30 // the largest object of a store
)

// request is one line of the go command.
type request struct {
	ID       int64
	Command  string
	ActionID []byte `json:",omitempty"`
	OutputID []byte `json:",omitempty"`
	BodySize int64  `json:",omitempty"`
}

// response is one line to it.
type response struct {
	ID            int64
	Err           string     `json:",omitempty"`
	KnownCommands []string   `json:",omitempty"`
	Miss          bool       `json:",omitempty"`
	OutputID      []byte     `json:",omitempty"`
	Size          int64      `json:",omitempty"`
	Time          *time.Time `json:",omitempty"`
	DiskPath      string     `json:",omitempty"`
}

func bad(format string, args ...any) error {
	return forgeyard.Errorf("gocache", forgeyard.Invalid, format, args...)
}

// readRequest reads one request; io.EOF is the end. The body of a put follows: readBody.
func readRequest(r *bufio.Reader) (request, error) {
	var q request
	line, err := readLine(r)
	if err != nil {
		return q, err
	}
	if err := json.Unmarshal(line, &q); err != nil {
		return q, bad("%q is no request: %v", forgeyard.Clip(string(line), 120), err)
	}
	return q, q.check()
}

// readLine reads a line that is not empty.
func readLine(r *bufio.Reader) ([]byte, error) {
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return nil, bad("a request has more than %d bytes", maxLine)
		}
		if len(strings.TrimSpace(string(line))) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (q request) check() error {
	switch q.Command {
	case cmdClose:
		return nil
	case cmdGet, cmdPut:
	default:
		return bad("command %q is none of get, put and close", forgeyard.Clip(q.Command, 40))
	}
	if n := len(q.ActionID); n == 0 || n > maxID {
		return bad("an action id of %d bytes is not in [1, %d]", n, maxID)
	}
	if q.Command == cmdGet {
		return nil
	}
	if n := len(q.OutputID); n == 0 || n > maxID {
		return bad("an output id of %d bytes is not in [1, %d]", n, maxID)
	}
	if q.BodySize < 0 || q.BodySize > maxBody {
		return bad("a body of %d bytes is not in [0, %d]", q.BodySize, int64(maxBody))
	}
	return nil
}

// readBody writes the body of a put to w: a JSON string of base64 that holds size bytes.
// It is read to its end whatever w says, so that the next request is found.
func readBody(r *bufio.Reader, size int64, w io.Writer) error {
	if size == 0 {
		return nil
	}
	for {
		b, err := r.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		if b == '"' {
			break
		}
		if b != ' ' && b != '\n' && b != '\r' && b != '\t' {
			return bad("a body begins with %q, a quotation mark is expected", b)
		}
	}
	text := io.LimitReader(r, int64(base64.StdEncoding.EncodedLen(1))*((size+2)/3))
	n, werr, err := drain(w, base64.NewDecoder(base64.StdEncoding, text))
	if err != nil {
		return bad("a body of %d bytes is damaged: %v", size, err)
	}
	if n != size {
		return bad("a body has %d bytes, %d were announced", n, size)
	}
	if b, err := r.ReadByte(); err != nil {
		return unexpected(err)
	} else if b != '"' {
		return bad("a body goes on behind its %d bytes", size)
	}
	return werr
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// drain copies all of r, also when w fails in the middle.
func drain(w io.Writer, r io.Reader) (n int64, werr, rerr error) {
	buf := make([]byte, 64<<10)
	for {
		m, err := r.Read(buf)
		n += int64(m)
		if werr == nil && m > 0 {
			_, werr = w.Write(buf[:m])
		}
		if errors.Is(err, io.EOF) {
			return n, werr, nil
		}
		if err != nil {
			return n, werr, err
		}
	}
}

// entry is what an action made.
type entry struct {
	output []byte
	size   int64
	time   time.Time
}

// encode gives the line that stands in the folder and in the site:
//
//	go1 OUTPUT-ID-IN-HEX SIZE NANOSECONDS-SINCE-1970
func (e entry) encode() []byte {
	return fmt.Appendf(nil, "go1 %x %d %d\n", e.output, e.size, e.time.UnixNano())
}

// maxEntry bounds an encoded entry.
const maxEntry = 256

func parseEntry(b []byte) (entry, error) {
	if len(b) > maxEntry {
		return entry{}, bad("an entry has more than %d bytes", maxEntry)
	}
	line, ok := strings.CutSuffix(string(b), "\n")
	f := strings.Split(line, " ")
	if !ok || len(f) != 4 || f[0] != "go1" {
		return entry{}, bad("%q is no entry", forgeyard.Clip(string(b), 80))
	}
	out, err := hex.DecodeString(f[1])
	if err != nil || len(out) == 0 || len(out) > maxID {
		return entry{}, bad("%q is no output id", forgeyard.Clip(f[1], 80))
	}
	size, err1 := strconv.ParseInt(f[2], 10, 64)
	at, err2 := strconv.ParseInt(f[3], 10, 64)
	if err1 != nil || err2 != nil || size < 0 || size > maxBody {
		return entry{}, bad("%q is no entry", forgeyard.Clip(line, 80))
	}
	e := entry{output: out, size: size, time: time.Unix(0, at).UTC()}
	if string(e.encode()) != string(b) {
		return entry{}, bad("%q is not how an entry is written", forgeyard.Clip(line, 80))
	}
	return e, nil
}
