package errs

// Entry explains a reason to users. docs/errors.md is generated from the catalogue.
type Entry struct {
	Reason   Reason
	Happened string // what happened, as a clause
	Helps    string // what to do, as a clause; Markdown
}

// Catalogue explains every reason, in the order of Reasons.
func Catalogue() []Entry {
	return []Entry{
		{Invalid, "a value that can never work", "the hint says what is allowed"},
		{NotFound, "no job, dataset, sample or file has that name", "`larder jobs ls --ended`, `larder dataset ls`"},
		{AlreadyExists,
			"the name is taken by something different, a job uses the dataset that is to be removed, " +
				"or a daemon serves the socket already",
			"choose another name; for jobs, the message lists what differs"},
		{RankHeld, "a live client holds this rank of this job",
			"the message names the process; end it, or use another `job=` or `rank=`. Within one process, an older " +
				"Loader gives way to a newer one; `Loader(replace=True)` replaces a newer one that is iterated"},
		{Stale,
			"a newer client took the rank over, the client was idle for longer than `jobs.idle_timeout`, " +
				"or the daemon took the slot back",
			"only the newest client of a rank gets batches"},
		{SubsetSyntax, "the subset expression does not parse", "the message points at the character"},
		{SubsetEmpty, "the subset selects nothing, or less than one batch with `drop_last`",
			"`larder dataset inspect NAME --subset …` shows what it selects"},
		{DatasetEmpty, "the folder holds no samples", "`imagefolder:DIR` expects DIR/class/file"},
		{DatasetUnread, "the folder or file cannot be read",
			"check the path and its permissions; the daemon reads as its own user"},
		{SampleBad, "a sample cannot be decoded",
			"`larder dataset verify` lists all of them; repair or remove the file, or set `on_error=\"skip\"` or " +
				"`\"substitute\"`"},
		{RecipeInvalid, "an unknown op or argument, or a combination that cannot work",
			"the message names the nearest op or argument"},
		{ResourceExceeded,
			"a size exceeds a limit, and the message has both numbers",
			"lower the one, or raise the other"},
		{JobLimit, "as many jobs live as `jobs.max`, or as one daemon serves (64)",
			"`larder jobs ls` shows them; end one, or raise `jobs.max`"},
		{DiskFull, "the disk of the state directory is full, and the message says how much is needed",
			"make room; larder continues by itself"},
		{RingMemory, "the memory for rings does not suffice for the batches of the job, and the message has both numbers",
			"lower `batch_size`, `prefetch` or `tiers.total`, or raise `memory.limit`"},
		{ConfigInvalid, "the configuration file, an environment variable or a flag is wrong",
			"`larder config check FILE`; [configuration.md](configuration.md)"},
		{Unavailable, "the daemon is stopping, has ended, or cannot be reached",
			"`larder serve`; `larder doctor` looks at the socket"},
		{Stopped, "a user stopped the daemon with `larder stop`; the message names who",
			"run the script again, or `larder serve`; `next()` of a live loader continues once a daemon serves the socket"},
		{JobEnded, "the job was killed, drained or has finished",
			"`larder jobs describe NAME` says why; register it again"},
		{Protocol, "a frame or message breaks the protocol",
			"use client and daemon of one version; [protocol.md](protocol.md)"},
		{Unsupported, "reserved for a later version", "the hint names what works today"},
		{StateFailed,
			"the state directory cannot be written (full, read-only, a failing disk). A running daemon stops at the " +
				"first write or sync that fails; only a full disk makes it wait for room instead",
			"make room, repair the disk or set `state.dir`; then start again: nothing that was promised is lost"},
		{StateDamaged, "the state directory does not hold what larder wrote; the message names file and offset",
			"`larder state repair DIR` says what can be saved, and saves it"},
		{Token,
			"a `state_dict` cannot be resumed: it was edited, belongs to another dataset or another daemon's log, its " +
				"order is no longer kept, or files have changed since",
			"the hint says which: load it unchanged on the daemon that made it; `state_dict(portable=True)` needs no " +
				"log; `strict=False` accepts changed files"},
		{Unauthenticated, "a call over TCP had no token, or a wrong one",
			"`--token-file` or `LARDER_TOKEN_FILE`; [security.md](security.md)"},
		{Denied,
			"this user may not do that: not the daemon's user or group, not the owner of the job, or no permission to " +
				"read the dataset",
			"the message names who may; [security.md](security.md)"},
		{Internal, "a bug of larder, or a failure of the machine", "the daemon's log has more; please report it"},
	}
}
