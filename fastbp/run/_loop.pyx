# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The loop that runs a program: kernels by address, W workers, a barrier between instructions, no GIL, no Python.

Worker 0 is the caller's thread. The others are threads that live in `serve`: they spin for a moment, then sleep on a
condition until the next program is posted; one wake-up a run.

An instruction is cut into one share a worker, or into more tasks than that: then a worker takes its own share's tasks
first and after them what slower workers have not begun. A kernel does not see the difference, since its (worker,
workers) is any part of any number of parts.

While a thread runs a program its denormals are zero, as operands and as results; afterwards its own mode is back
(docs/decisions/0009).
"""

from libc.stdint cimport int64_t, intptr_t

cdef extern from *:
    """
    #include <pthread.h>
    #include <sched.h>
    #include <stdatomic.h>
    #include <stdint.h>

    typedef void (*fastbp_kernel)(const int64_t *, int64_t, int64_t);

    typedef struct { _Atomic long count; char apart[120]; } fastbp_counter;

    typedef struct {
        _Atomic long arrived;
        char apart[120];
        _Atomic long phase;
        char apart_too[120];
        _Atomic long posted;        /* counts programs; a change wakes the workers */
        char apart_again[120];
        _Atomic int stopping;
        _Atomic int sleepers;
        pthread_mutex_t mutex;
        pthread_cond_t condition;
        const int64_t *functions;
        const int64_t *arguments;
        const int64_t *tasks;
        long count;
        long stride;
        long workers;
        fastbp_counter *begun;      /* 2 × workers: tasks begun of each worker's, at even and at odd instructions */
    } fastbp_team;

    #if defined(__x86_64__) || defined(__i386__)
    #define FASTBP_PAUSE() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define FASTBP_PAUSE() __asm__ __volatile__("yield")
    #else
    #define FASTBP_PAUSE() ((void)0)
    #endif

    /* Spins between two offers of the core to others: some microseconds. With 4,000, three workers on two cores took
       47 us a barrier, with 300 it is 4; two on two are as fast with either, 0.2 us. */
    enum { FASTBP_SPINS = 300, FASTBP_PATIENCE = 80000 };

    /* Denormals count as zero from `fastbp_flush` to `fastbp_restore`; nothing happens on other architectures. */
    #if defined(__x86_64__)
    #include <immintrin.h>
    typedef unsigned fastbp_mode;
    static inline fastbp_mode fastbp_flush(void) {
        fastbp_mode before = _mm_getcsr();
        _mm_setcsr(before | 0x8040);    /* FTZ is bit 15, DAZ bit 6 */
        return before;
    }
    static inline void fastbp_restore(fastbp_mode before) { _mm_setcsr(before); }
    #elif defined(__aarch64__) && defined(__GNUC__)
    typedef uint64_t fastbp_mode;
    static inline fastbp_mode fastbp_flush(void) {
        fastbp_mode before;
        __asm__ __volatile__("mrs %0, fpcr" : "=r"(before));
        __asm__ __volatile__("msr fpcr, %0" : : "r"(before | (UINT64_C(1) << 24)) : "memory");    /* FZ does both */
        return before;
    }
    static inline void fastbp_restore(fastbp_mode before) {
        __asm__ __volatile__("msr fpcr, %0" : : "r"(before) : "memory");
    }
    #else
    typedef int fastbp_mode;
    static inline fastbp_mode fastbp_flush(void) { return 0; }
    static inline void fastbp_restore(fastbp_mode before) { (void)before; }
    #endif

    static void fastbp_barrier(fastbp_team *team) {
        long phase = atomic_load_explicit(&team->phase, memory_order_relaxed);
        if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) == team->workers - 1) {
            atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
            atomic_store_explicit(&team->phase, phase + 1, memory_order_release);
            return;
        }
        int spins = 0;
        while (atomic_load_explicit(&team->phase, memory_order_acquire) == phase) {
            FASTBP_PAUSE();
            if (++spins >= FASTBP_SPINS) { spins = 0; sched_yield(); }
        }
    }

    static void fastbp_tasks(fastbp_team *team, long i, fastbp_kernel kernel, const int64_t *row, long worker) {
        const long workers = team->workers, tasks = team->tasks[i];
        for (long k = 0; k < workers; k++) {
            const long owner = (worker + k) % workers, first = tasks * owner / workers;
            const long count = tasks * (owner + 1) / workers - first;
            _Atomic long *begun = &team->begun[(i & 1) * workers + owner].count;
            for (long t; (t = atomic_fetch_add_explicit(begun, 1, memory_order_relaxed)) < count;)
                kernel(row, first + t, tasks);
        }
    }

    static void fastbp_run(fastbp_team *team, long worker) {
        /* Copies: behind the last barrier worker 0 may fill in the next program while others are still here. */
        const int64_t *functions = team->functions, *row = team->arguments, *tasks = team->tasks;
        const long count = team->count, stride = team->stride, workers = team->workers;
        const fastbp_mode before = fastbp_flush();
        for (long i = 0; i < count; i++, row += stride) {
            const fastbp_kernel kernel = (fastbp_kernel)(intptr_t)functions[i];
            /* The next instruction's counter; the one before used it last, and everyone has left that. */
            atomic_store_explicit(&team->begun[((i + 1) & 1) * workers + worker].count, 0, memory_order_relaxed);
            if (workers > 1 && tasks && tasks[i]) fastbp_tasks(team, i, kernel, row, worker);
            else kernel(row, worker, workers);
            if (workers > 1) fastbp_barrier(team);
        }
        fastbp_restore(before);
    }

    static void fastbp_post(fastbp_team *team) {
        atomic_fetch_add(&team->posted, 1);
        if (atomic_load(&team->sleepers)) {
            pthread_mutex_lock(&team->mutex);
            pthread_cond_broadcast(&team->condition);
            pthread_mutex_unlock(&team->mutex);
        }
    }

    static void fastbp_await(fastbp_team *team, long seen) {
        for (int spins = 1; spins <= FASTBP_PATIENCE; spins++) {
            if (atomic_load_explicit(&team->posted, memory_order_acquire) != seen) return;
            FASTBP_PAUSE();
            if (spins % FASTBP_SPINS == 0) sched_yield();
        }
        pthread_mutex_lock(&team->mutex);
        atomic_fetch_add(&team->sleepers, 1);
        while (atomic_load(&team->posted) == seen) pthread_cond_wait(&team->condition, &team->mutex);
        atomic_fetch_sub(&team->sleepers, 1);
        pthread_mutex_unlock(&team->mutex);
    }

    static void fastbp_serve(fastbp_team *team, long worker) {
        long seen = 0;
        for (;;) {
            fastbp_await(team, seen);
            seen++;
            if (atomic_load(&team->stopping)) return;
            fastbp_run(team, worker);
        }
    }
    """
    ctypedef struct fastbp_team:
        int stopping
        const int64_t *functions
        const int64_t *arguments
        const int64_t *tasks
        long count
        long stride
        long workers
        void *mutex
        void *condition
    ctypedef void (*fastbp_kernel)(const int64_t *, int64_t, int64_t) noexcept nogil
    ctypedef int fastbp_mode
    fastbp_mode fastbp_flush() noexcept nogil
    void fastbp_restore(fastbp_mode) noexcept nogil
    void fastbp_run(fastbp_team *, long) noexcept nogil
    void fastbp_serve(fastbp_team *, long) noexcept nogil

cdef extern from *:
    """
    #include <stdlib.h>

    static fastbp_team *fastbp_new(long workers) {
        fastbp_team *team = calloc(1, sizeof(fastbp_team));
        if (team == NULL) return NULL;
        team->begun = calloc(2 * workers, sizeof(fastbp_counter));
        if (team->begun == NULL) { free(team); return NULL; }
        team->workers = workers;
        pthread_mutex_init(&team->mutex, NULL);
        pthread_cond_init(&team->condition, NULL);
        return team;
    }
    static void fastbp_free(fastbp_team *team) {
        if (team) free(team->begun);
        free(team);
    }
    static void fastbp_begin(fastbp_team *team) {
        for (long worker = 0; worker < team->workers; worker++) atomic_store(&team->begun[worker].count, 0);
        if (team->workers > 1) fastbp_post(team);
    }
    static void fastbp_stop(fastbp_team *team) { atomic_store(&team->stopping, 1); fastbp_post(team); }
    """
    fastbp_team *fastbp_new(long) noexcept nogil
    void fastbp_free(fastbp_team *) noexcept nogil
    void fastbp_begin(fastbp_team *) noexcept nogil
    void fastbp_stop(fastbp_team *) noexcept nogil


cdef class Instructions:
    """Kernel addresses (n), their argument rows (n, stride) and the numbers of tasks (n) that they are cut into, int64,
    kept alive and pointed at once. Without numbers of tasks, or where one is 0: one share a worker.
    """

    cdef int64_t[::1] _functions
    cdef int64_t[:, ::1] _arguments
    cdef int64_t[::1] _tasks
    cdef const int64_t *functions
    cdef const int64_t *arguments
    cdef const int64_t *tasks
    cdef readonly long count
    cdef long stride

    def __init__(self, int64_t[::1] functions not None, int64_t[:, ::1] arguments not None,
                 int64_t[::1] tasks=None):
        if functions.shape[0] != arguments.shape[0]:
            raise ValueError(f"{functions.shape[0]} kernels, but {arguments.shape[0]} rows of arguments")
        if tasks is not None and functions.shape[0] != tasks.shape[0]:
            raise ValueError(f"{functions.shape[0]} kernels, but {tasks.shape[0]} numbers of tasks")
        self._functions, self._arguments, self._tasks = functions, arguments, tasks
        self.count, self.stride = functions.shape[0], arguments.shape[1]
        self.functions = &functions[0] if self.count else NULL
        self.arguments = &arguments[0, 0] if self.count and self.stride else NULL
        self.tasks = &tasks[0] if self.count and tasks is not None else NULL

    def run_alone(self, long start, long stop, long workers):
        """Runs instructions [start, stop) in the calling thread, which plays each of `workers` workers in turn."""
        cdef long i, part, parts
        cdef fastbp_mode before
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"instructions {start} to {stop} of {self.count}")
        with nogil:
            before = fastbp_flush()
            for i in range(start, stop):
                parts = self.tasks[i] if workers > 1 and self.tasks and self.tasks[i] else workers
                for part in range(parts):
                    (<fastbp_kernel><intptr_t>self.functions[i])(self.arguments + i * self.stride, part, parts)
            fastbp_restore(before)


cdef class Team:
    """The shared state of `workers` workers. `serve(w)` is the life of worker w ≥ 1; `run` is worker 0."""

    cdef fastbp_team *team

    def __cinit__(self, long workers):
        if workers < 1:
            raise ValueError(f"a team of {workers} workers")
        self.team = fastbp_new(workers)
        if self.team is NULL:
            raise MemoryError("no memory for a team of workers")

    def __dealloc__(self):
        fastbp_free(self.team)

    @property
    def workers(self):
        return self.team.workers

    def serve(self, long worker):
        """Runs every program that is posted, as `worker`, until `stop`."""
        with nogil:
            fastbp_serve(self.team, worker)

    def run(self, Instructions instructions not None):
        """Runs a program to its end with all workers. One caller at a time."""
        if instructions.count == 0:
            return
        self.team.functions = instructions.functions
        self.team.arguments = instructions.arguments
        self.team.tasks = instructions.tasks
        self.team.count = instructions.count
        self.team.stride = instructions.stride
        with nogil:
            fastbp_begin(self.team)
            fastbp_run(self.team, 0)

    def stop(self):
        """Sends every worker home. Nothing may run."""
        fastbp_stop(self.team)
