package capability

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node/job"
)

// tool is a program that jobs ask for by name, and how it tells its version.
type tool struct {
	name string
	args []string
}

// known are the tools that are looked for, by name.
var known = []tool{
	{"bash", []string{"--version"}},
	{"cargo", []string{"--version"}},
	{"clang", []string{"--version"}},
	{"cmake", []string{"--version"}},
	{"g++", []string{"-dumpfullversion"}},
	{"gcc", []string{"-dumpfullversion"}},
	{"git", []string{"--version"}},
	{"go", []string{"version"}},
	{"java", []string{"-version"}},
	{"make", []string{"--version"}},
	{"ninja", []string{"--version"}},
	{"node", []string{"--version"}},
	{"perl", []string{"--version"}},
	{"python3", []string{"--version"}},
	{"rustc", []string{"--version"}},
}

// versionWait bounds one tool; a hanging one is listed without a version.
const versionWait = 10 * time.Second

var versionText = regexp.MustCompile(`\d+(\.\d+)+`)

// toolchains asks all known tools at once, with nothing of the node's environment.
func toolchains(ctx context.Context, path string) []job.Toolchain {
	found := make([]*job.Toolchain, len(known))
	var wg sync.WaitGroup
	for i, t := range known {
		file := look(path, t.name)
		if file == "" {
			continue
		}
		wg.Go(func() {
			found[i] = &job.Toolchain{Name: t.name, Version: version(ctx, path, file, t.args), Source: job.ToolchainHost}
		})
	}
	wg.Wait()
	var out []job.Toolchain
	for _, f := range slices.DeleteFunc(found, func(f *job.Toolchain) bool { return f == nil }) {
		out = append(out, *f)
	}
	return out
}

// look finds a program in path only.
func look(path, name string) string {
	for _, d := range filepath.SplitList(path) {
		p := filepath.Join(d, name)
		st, err := os.Stat(p)
		if filepath.IsAbs(p) && err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 {
			return p
		}
	}
	return ""
}

func version(ctx context.Context, path, file string, args []string) string {
	ctx, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	c := exec.CommandContext(ctx, file, args...)
	c.Env = []string{"PATH=" + path, "LANG=C", "HOME=/nonexistent", "GOTOOLCHAIN=local", "GOENV=off", "GOCACHE=off"}
	c.Dir, c.WaitDelay = "/", time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		return ""
	}
	return versionText.FindString(string(out[:min(len(out), 400)])) // a tool may begin with an empty line
}
