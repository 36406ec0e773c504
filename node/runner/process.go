package runner

// Process names the main process of the step that was started last: its pid, and its
// birth time, so that a reused pid is never taken for it (RSE). Zero before the first.
func (a *Attempt) Process() (pid int, birth uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.Orphan.PID, a.state.Orphan.Birth
}
