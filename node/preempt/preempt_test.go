package preempt

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// What sources say, as the large clouds say it. What is not understood is no notice.
func TestParse(t *testing.T) {
	at := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	for said, want := range map[string]struct {
		at     time.Time
		notice bool
		bad    string
	}{
		"": {notice: true}, "TRUE\n": {notice: true}, "FALSE": {}, "none": {},
		"2026-12-01T10:00:00Z": {at: at, notice: true},
		`{"action": "terminate", "time": "2026-12-01T10:00:00Z"}`:              {at: at, notice: true},
		`{"time": "2026-12-01T10:00:00Z", "deadline": "2026-12-01T10:02:00Z"}`: {at: at, notice: true},
		`{"action": "stop"}`:                        {notice: true},
		`{"deadline": "2026-12-01T11:00:00+01:00"}`: {at: at, notice: true},
		`{"DocumentIncarnation": 1, "Events": []}`:  {},
		`{"Events": [{"EventType": "Freeze", "NotBefore": "Tue, 01 Dec 2026 10:00:00 GMT"}]}`:  {},
		`{"Events": [{"EventType": "Preempt", "NotBefore": "Tue, 01 Dec 2026 10:00:00 GMT"}]}`: {at: at, notice: true},
		`{"Events": [{"EventType": "Freeze"}, {"EventType": "Terminate", "NotBefore": ""}]}`:   {notice: true},
		`{"error": "try again"}`: {bad: "has no action, time, deadline or Events"},
		"soon":                   {bad: `"soon" is no time`},
		`{"time": "soon"}`:       {bad: `"soon" is no time`},
		`{"time": `:              {bad: "unexpected end"},
	} {
		got, notice, err := Parse([]byte(said))
		if (err == nil) != (want.bad == "") || err != nil && !strings.Contains(err.Error(), want.bad) {
			t.Errorf("%q: %v, want %q", said, err, want.bad)
		}
		if notice != want.notice || !got.Equal(want.at) {
			t.Errorf("%q: %v at %s", said, notice, got)
		}
	}
}

// CK-148, CK-151: a notice comes from a real source: a file, a command, a metadata service. Who
// takes machines away, a market or an autoscaler that goes down (CK-033), tells it by one of them.
func TestSources(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "notice")
	look := func(s Source) (bool, time.Time, error) {
		t.Helper()
		n, err := s.Look(context.Background())
		if n == nil {
			return false, time.Time{}, err
		}
		if n.Source != s.Name() {
			t.Errorf("%q comes from %q", n.Source, s.Name())
		}
		return true, n.Deadline, err
	}
	if ok, _, err := look(File(file)); ok || err != nil {
		t.Errorf("no file is no notice: %v", err)
	}
	if err := os.WriteFile(file, []byte("2026-12-01T10:00:00Z"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ok, at, err := look(File(file)); !ok || err != nil || at.Hour() != 10 {
		t.Errorf("%v %s %v", ok, at, err)
	}
	if ok, _, err := look(Command{"/bin/sh", "-c", "exit 1"}); ok || err != nil {
		t.Errorf("exit 1 is no notice: %v", err)
	}
	if ok, _, err := look(Command{"/bin/sh", "-c", "exit 0"}); !ok || err != nil {
		t.Errorf("exit 0 is a notice: %v", err)
	}
	if ok, _, err := look(Command{"/bin/sh", "-c", "exit 2"}); ok || err == nil {
		t.Error("exit 2 is no word")
	}
	if ok, _, err := look(Command{"/bin/sh", "-c", "head -c 100000 /dev/zero"}); ok || err == nil {
		t.Error("a flood is no word")
	}
	var answer func(w http.ResponseWriter, r *http.Request)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer srv.Close()
	h := HTTP{URL: srv.URL + "/spot", Header: map[string]string{"Metadata": "true"}}
	answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }
	if ok, _, err := look(h); ok || err != nil {
		t.Errorf("404 is no notice: %v", err)
	}
	answer = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata") != "true" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(`{"action": "terminate", "time": "2026-12-01T10:00:00Z"}`))
	}
	if ok, at, err := look(h); !ok || err != nil || at.Hour() != 10 {
		t.Errorf("%v %s %v", ok, at, err)
	}
	if ok, _, err := look(HTTP{URL: h.URL}); ok || forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Errorf("403 is no word: %v", err)
	}
	answer = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
	}
	if ok, _, err := look(h); ok || err == nil {
		t.Error("a metadata service that points elsewhere is not followed")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("TRUE"))
	f.Add([]byte(`{"Events": [{"EventType": "Preempt", "NotBefore": "Tue, 01 Dec 2026 10:00:00 GMT"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		at, notice, err := Parse(b)
		if err != nil && (notice || !at.IsZero()) {
			t.Fatalf("%q: an error and a notice", b)
		}
	})
}
