// Package preempt decides whether this machine is being taken away, by asking what its owner
// configured: a file, a command, or a metadata service over HTTP.
//
// What a source says is a notice and no promise (69§101): a time that it names may come early.
// What cannot be understood is an error, and never a notice: it would empty the machine.
package preempt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Notice is what a source says.
type Notice struct {
	Source   string
	Deadline time.Time // by the source's wall clock; zero: it names none
}

// Source is asked again and again.
type Source interface {
	// Look returns the notice, or nil while there is none.
	Look(ctx context.Context) (*Notice, error)
	// Name is for people.
	Name() string
}

// Bounds of one look.
const (
	maxWord  = 64 << 10
	maxWait  = 5 * time.Second
	httpWait = 2 * time.Second
)

// File is a notice while it exists; what it holds may name the time.
type File string

// Name implements Source.
func (f File) Name() string { return "file " + string(f) }

// Look implements Source.
func (f File) Look(context.Context) (*Notice, error) {
	r, err := os.OpenFile(string(f), os.O_RDONLY|noWait, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if st, err := r.Stat(); err != nil || !st.Mode().IsRegular() {
		// A pipe that nobody writes to would be waited for without end.
		return nil, errors.Join(err, forgeyard.Errorf("preemption", forgeyard.Invalid, "%s is no regular file", string(f)))
	}
	return read(f.Name(), r)
}

// Command is asked by its exit code: 0 is a notice, and what it prints may name the time; 1 is
// none.
type Command []string

// Name implements Source.
func (c Command) Name() string { return "command " + c[0] }

// Look implements Source.
func (c Command) Look(ctx context.Context) (*Notice, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, c[0], c[1:]...)
	cmd.WaitDelay = time.Second
	ownGroup(cmd) // a shell's children would stay behind it
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &limited{&out}, &limited{&said}
	err := cmd.Run()
	var x *exec.ExitError
	switch {
	case errors.As(err, &x) && x.ExitCode() == 1:
		return nil, nil
	case err != nil:
		if first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n"); first != "" {
			err = fmt.Errorf("%w: %s", err, forgeyard.Clip(first, 200))
		}
		return nil, err
	}
	return read(c.Name(), &out)
}

// limited drops what is too much.
type limited struct{ to *bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if room := maxWord + 1 - l.to.Len(); room > 0 {
		l.to.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

// HTTP asks a metadata service: 404 is no notice, 200 is what it says.
type HTTP struct {
	URL    string
	Header map[string]string
}

// client follows nobody elsewhere and uses no proxy: a metadata service is the machine's own.
var client = &http.Client{
	Timeout: httpWait, Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Name implements Source.
func (h HTTP) Name() string { return "metadata " + h.URL }

// Look implements Source.
func (h HTTP) Look(ctx context.Context) (*Notice, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range h.Header {
		req.Header.Set(k, v)
	}
	r, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close() //nolint:errcheck // it was only read
	switch r.StatusCode {
	case http.StatusNotFound:
		return nil, nil
	case http.StatusOK:
		return read(h.Name(), r.Body)
	}
	return nil, forgeyard.Errorf("preemption", forgeyard.Unavailable, "%s answers %s; 200 is a notice and 404 is none", h.URL, r.Status)
}

func read(name string, r io.Reader) (*Notice, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxWord+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxWord {
		return nil, forgeyard.Errorf("preemption", forgeyard.Invalid, "%s says more than %d bytes", name, maxWord)
	}
	at, ok, err := Parse(b)
	if err != nil || !ok {
		return nil, err
	}
	return &Notice{Source: name, Deadline: at}, nil
}

// said is what the large clouds answer: EC2's instance action, and Azure's scheduled events.
type said struct {
	Action   string  `json:"action"`
	Time     string  `json:"time"`
	Deadline string  `json:"deadline"`
	Events   []event `json:"Events"`
}

type event struct {
	Type      string `json:"EventType"`
	NotBefore string `json:"NotBefore"`
}

// Parse reads what a source says: nothing or a yes is a notice without a time; a no is none; a
// time as RFC 3339 has it, or an object that holds one, is a notice with it.
func Parse(b []byte) (at time.Time, notice bool, err error) {
	word := strings.TrimSpace(string(b))
	switch strings.ToLower(word) {
	case "", "true", "yes", "1":
		return time.Time{}, true, nil
	case "false", "no", "none", "0":
		return time.Time{}, false, nil
	}
	if !strings.HasPrefix(word, "{") {
		at, err := moment(word)
		return at, err == nil, err
	}
	var s said
	if err := json.Unmarshal([]byte(word), &s); err != nil {
		return time.Time{}, false, forgeyard.Errorf("preemption", forgeyard.Invalid, "%q: %v", forgeyard.Clip(word, 80), err)
	}
	if s.Events != nil {
		return scheduled(s.Events)
	}
	text := cmp.Or(s.Time, s.Deadline)
	if text == "" {
		if s.Action == "" {
			return time.Time{}, false, forgeyard.Errorf("preemption", forgeyard.Invalid, "%q has no action, time, deadline or Events", forgeyard.Clip(word, 80))
		}
		return time.Time{}, true, nil
	}
	at, err = moment(text)
	return at, err == nil, err
}

// scheduled takes the first event that takes the machine away.
func scheduled(all []event) (time.Time, bool, error) {
	for _, e := range all {
		switch e.Type {
		case "Preempt", "Terminate", "Redeploy":
		default:
			continue
		}
		if e.NotBefore == "" {
			return time.Time{}, true, nil
		}
		at, err := moment(e.NotBefore)
		return at, err == nil, err
	}
	return time.Time{}, false, nil
}

func moment(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.RFC1123, time.RFC1123Z} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, forgeyard.E("preemption", forgeyard.Invalid, fmt.Errorf("%q is no time as RFC 3339 has it", forgeyard.Clip(text, 80)))
}
