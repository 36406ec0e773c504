package gocache

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// shelf is a node's build cache as far as a helper sees it.
type shelf struct {
	mu    sync.Mutex
	m     map[string][]byte
	token string
	fail  bool
	asked int
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	switch {
	case s.fail:
		http.Error(w, "trouble", http.StatusInternalServerError)
	case r.Method == http.MethodPut && r.Header.Get("Authorization") != "Bearer "+s.token:
		http.Error(w, "no token", http.StatusUnauthorized)
	case r.Method == http.MethodPut:
		b, _ := io.ReadAll(r.Body) // what is short is found out by its hash
		s.m[r.URL.Path] = b
		w.WriteHeader(http.StatusCreated)
	case s.m[r.URL.Path] == nil:
		http.NotFound(w, r)
	default:
		_, _ = w.Write(s.m[r.URL.Path]) // the helper sees what comes
	}
}

func serve(t *testing.T) (*shelf, string) {
	t.Helper()
	s := &shelf{m: map[string][]byte{}, token: "secret"}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return s, strings.TrimPrefix(srv.URL, "http://")
}

// goCommand is the other end: it asks and reads the answers by id.
type goCommand struct {
	t     *testing.T
	in    *io.PipeWriter
	out   *bufio.Reader
	id    int64
	done  chan struct{}
	stats Stats
	err   error
}

func start(t *testing.T, cfg Config) *goCommand {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	g := &goCommand{t: t, in: inW, out: bufio.NewReader(outR), done: make(chan struct{})}
	go func() {
		defer close(g.done)
		g.stats, g.err = Run(t.Context(), cfg, inR, outW)
		_ = outW.Close() // a pipe's close does not fail
		_ = inR.Close()
	}()
	t.Cleanup(func() { _ = inW.Close(); <-g.done })
	if r := g.answer(); strings.Join(r.KnownCommands, " ") != "get put close" || r.ID != 0 {
		t.Fatalf("%+v", r)
	}
	return g
}

func (g *goCommand) answer() (r response) {
	g.t.Helper()
	line, err := g.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		g.t.Fatalf("%q %v", line, err)
	}
	return r
}

func (g *goCommand) say(text string) {
	g.t.Helper()
	if _, err := io.WriteString(g.in, text); err != nil {
		g.t.Fatal(err)
	}
}

func (g *goCommand) ask(q request, body []byte) response {
	g.t.Helper()
	g.id++
	q.ID, q.BodySize = g.id, int64(len(body))
	b, err := json.Marshal(q)
	if err != nil {
		g.t.Fatal(err)
	}
	text := string(b) + "\n\n"
	if len(body) > 0 {
		text += `"` + base64.StdEncoding.EncodeToString(body) + "\"\n"
	}
	g.say(text)
	if r := g.answer(); r.ID == g.id {
		return r
	}
	g.t.Fatal("an answer to another question")
	return response{}
}

func (g *goCommand) put(action string, body []byte) response {
	g.t.Helper()
	sum := sha256.Sum256(body)
	return g.ask(request{Command: cmdPut, ActionID: id(action), OutputID: sum[:]}, body)
}

func (g *goCommand) get(action string) (string, bool) {
	g.t.Helper()
	r := g.ask(request{Command: cmdGet, ActionID: id(action)}, nil)
	if r.Miss || r.Err != "" {
		return r.Err, false
	}
	b, err := os.ReadFile(r.DiskPath)
	if err != nil || int64(len(b)) != r.Size || r.Time == nil {
		g.t.Fatalf("%+v %v", r, err)
	}
	return string(b), true
}

// end closes in order, and gives the counts.
func (g *goCommand) end() Stats {
	g.t.Helper()
	g.ask(request{Command: cmdClose}, nil)
	<-g.done
	if g.err != nil {
		g.t.Fatal(g.err)
	}
	return g.stats
}

func id(s string) []byte { h := sha256.Sum256([]byte("action " + s)); return h[:] }

// What one machine built another finds by way of the node, and then in its own folder.
func TestTwoMachines(t *testing.T) {
	s, addr := serve(t)
	a := start(t, Config{Dir: t.TempDir(), Node: addr, Token: "secret"})
	big := bytes.Repeat([]byte("0123456789abcde"), 100_000)
	for name, b := range map[string][]byte{"one": []byte("1"), "none": nil, "big": big} {
		if r := a.put(name, b); r.Err != "" || r.DiskPath == "" {
			t.Fatalf("%+v", r)
		}
	}
	if got, ok := a.get("one"); !ok || got != "1" {
		t.Errorf("%q", got)
	}
	if st := a.end(); st.Puts != 3 || st.Uploaded != 3 || st.FolderHits != 1 || st.Failed != 0 {
		t.Errorf("%+v", st)
	}
	dir := t.TempDir()
	b := start(t, Config{Dir: dir, Node: addr})
	for name, want := range map[string]string{"one": "1", "none": "", "big": string(big)} {
		if got, ok := b.get(name); !ok || got != want {
			t.Errorf("%s: %d bytes, %v", name, len(got), ok)
		}
	}
	if _, ok := b.get("another"); ok {
		t.Error("what nobody built is there")
	}
	if st := b.end(); st.NodeHits != 3 || st.Misses != 1 || st.Failed != 0 || st.NodeBytes != int64(len(big))+1 {
		t.Errorf("%+v", st)
	}
	s.fail = true
	c := start(t, Config{Dir: dir, Node: addr})
	if got, ok := c.get("big"); !ok || got != string(big) {
		t.Errorf("from the folder: %d bytes", len(got))
	}
	if st := c.end(); st.FolderHits != 1 || st.Failed != 0 {
		t.Errorf("%+v", st)
	}
}

// A node that is in trouble is asked a few times and no more; builds go on.
func TestNodeInTrouble(t *testing.T) {
	s, addr := serve(t)
	s.fail = true
	g := start(t, Config{Dir: t.TempDir(), Node: addr, Token: "secret"})
	for i := range 20 {
		if _, ok := g.get(fmt.Sprint(i)); ok {
			t.Error("a hit")
		}
	}
	if r := g.put("x", []byte("x")); r.Err != "" {
		t.Error(r.Err)
	}
	if st := g.end(); st.Misses != 20 || st.Failed != giveUpAfter || s.asked != giveUpAfter {
		t.Errorf("%+v, asked %d times", st, s.asked)
	}
}

// A node that takes calls and stands still holds a build for a moment, and not for ever.
func TestNodeThatStandsStill(t *testing.T) {
	still := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-still }))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(still) })
	g := start(t, Config{Dir: t.TempDir(), Node: strings.TrimPrefix(srv.URL, "http://"), Token: "secret", Wait: 20 * time.Millisecond})
	if r := g.put("x", bytes.Repeat([]byte("x"), 1<<10)); r.Err != "" {
		t.Error(r.Err)
	}
	for i := range 5 {
		if _, ok := g.get(fmt.Sprint(i)); ok {
			t.Error("a hit")
		}
	}
	if st := g.end(); st.Misses != 5 || st.Failed < giveUpAfter || st.Failed > giveUpAfter+1 {
		t.Errorf("%+v", st)
	}
}

// C01: wrong bytes from a node have no place, and are a miss; a token that is refused costs
// the sharing and nothing else.
func TestC01WrongBytesFromANode(t *testing.T) {
	s, addr := serve(t)
	a := start(t, Config{Dir: t.TempDir(), Node: addr, Token: "secret"})
	a.put("x", []byte("right"))
	a.end()
	sum := sha256.Sum256([]byte("right"))
	s.m["/cas/"+hex.EncodeToString(sum[:])] = []byte("wrong")
	dir := t.TempDir()
	b := start(t, Config{Dir: dir, Node: addr, Token: "stolen"})
	if got, ok := b.get("x"); ok {
		t.Errorf("%q", got)
	}
	if found, err := filepath.Glob(dir + "/o/*/*"); err != nil || len(found) != 0 {
		t.Errorf("%v %v", found, err)
	}
	s.m["/"+entryPath(id("y"))] = []byte("go1 zz")
	if _, ok := b.get("y"); ok {
		t.Error("an entry that is none")
	}
	if r := b.put("z", []byte("z")); r.Err != "" {
		t.Error(r.Err)
	}
	if st := b.end(); st.Uploaded != 0 || st.Failed != 3 || st.Misses != 2 {
		t.Errorf("%+v", st)
	}
}

// A folder that cannot be written answers with the reason, and the next request is still
// understood.
func TestFolderThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	g := start(t, Config{Dir: dir})
	if err := os.WriteFile(filepath.Join(dir, "o"), nil, 0o600); err != nil { // a file where a folder must be
		t.Fatal(err)
	}
	if r := g.put("x", []byte("body")); r.Err == "" {
		t.Errorf("%+v", r)
	}
	if _, ok := g.get("x"); ok {
		t.Error("a hit")
	}
	if st := g.end(); st.Puts != 1 || st.Misses != 1 {
		t.Errorf("%+v", st)
	}
}

// What is no conversation ends it with one line.
func TestBadConversation(t *testing.T) {
	for text, want := range map[string]string{
		"nonsense\n": "is no request",
		`{"ID":1,"Command":"get","ActionID":""}` + "\n":                                                  "action id of 0 bytes",
		`{"ID":1,"Command":"drop","ActionID":"AAAA"}` + "\n":                                             "none of get, put and close",
		`{"ID":1,"Command":"put","ActionID":"AAAA","OutputID":"AAAA","BodySize":3}` + "\nAAAA":           "a quotation mark is expected",
		`{"ID":1,"Command":"put","ActionID":"AAAA","OutputID":"AAAA","BodySize":3}` + "\n\"AA\"\n":       "damaged",
		`{"ID":1,"Command":"put","ActionID":"AAAA","OutputID":"AAAA","BodySize":3}` + "\n\"AAAAAAAA\"\n": "goes on behind its 3 bytes",
		`{"ID":1,"Command":"put","ActionID":"AAAA","OutputID":"AAAA","BodySize":-3}` + "\n":              "body of -3 bytes",
		strings.Repeat(" ", maxLine+1):                                                                   "more than",
	} {
		g := start(t, Config{Dir: t.TempDir()})
		_, _ = io.WriteString(g.in, text) // it may hang up in the middle
		_ = g.in.Close()
		<-g.done
		if forgeyard.KindOf(g.err) != forgeyard.Invalid || !strings.Contains(g.err.Error(), want) {
			t.Errorf("%q: %v", text, g.err)
		}
	}
}

// Old files go, once a day; what was used stays.
func TestTrim(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	cfg := Config{Dir: dir, Now: func() time.Time { return now }}
	g := start(t, cfg)
	g.put("old", []byte("old"))
	g.put("used", []byte("used"))
	g.end()
	now = now.Add(unusedFor - time.Hour)
	g = start(t, cfg)
	g.get("used")
	g.end()
	now = now.Add(25 * time.Hour)
	g = start(t, cfg)
	g.end()
	g = start(t, cfg)
	if _, ok := g.get("old"); ok {
		t.Error("old is still here")
	}
	if _, ok := g.get("used"); !ok {
		t.Error("used is gone")
	}
	g.end()
}

// A request that is taken is within the bounds, and its body has as many bytes as it says.
func FuzzConversation(f *testing.F) {
	f.Add([]byte(`{"ID":1,"Command":"get","ActionID":"AAAA"}` + "\n"))
	f.Add([]byte(`{"ID":1,"Command":"put","ActionID":"AAAA","OutputID":"AAAA","BodySize":3}` + "\n\n\"AAAA\"\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(b), maxLine)
		for {
			q, err := readRequest(r)
			if err != nil {
				return
			}
			if q.Command == cmdPut {
				var body bytes.Buffer
				if err := readBody(r, q.BodySize, &body); err != nil {
					return
				}
				if int64(body.Len()) != q.BodySize {
					t.Fatalf("%d bytes, %d were announced", body.Len(), q.BodySize)
				}
			}
		}
	})
}

// Entries stand in folders and in sites: this never changes.
func TestEntryOfVersion1(t *testing.T) {
	e := entry{output: []byte{0, 255}, size: 7, time: time.Unix(1, 5)}
	if got := string(e.encode()); got != "go1 00ff 7 1000000005\n" {
		t.Errorf("%q", got)
	}
	got, err := parseEntry(e.encode())
	if err != nil || !bytes.Equal(got.output, e.output) || got.size != 7 || !got.time.Equal(e.time) {
		t.Errorf("%+v %v", got, err)
	}
}

// An entry is refused, or is written as it came.
func FuzzEntry(f *testing.F) {
	f.Add([]byte("go1 00ff 3 4\n"))
	f.Add([]byte("go1 00ff -3 4\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEntry(b)
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.Invalid {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(e.encode(), b) {
			t.Fatalf("%q became %q", b, e.encode())
		}
	})
}

func TestUnexpectedEnd(t *testing.T) {
	err := readBody(bufio.NewReader(strings.NewReader(`"AAAA`)), 3, io.Discard)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}
