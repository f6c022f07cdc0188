// A small recurrent network held by one block of threads: forward, backward through time, clipping and update without another launch.
//
// Compiled at run time with R, NI, NO (units, inputs, outputs), UNITS (to a thread, 1 or 2), ACT (0 relu, 1 sigmoid, 2 tanh), LEAKY, CROSS (cross entropy) and
// MODE (0: train over many updates, 1: forward of a batch, 2: backward of a batch) set. In mode 0 a block is a network; in modes 1
// and 2 it is one example of one network.
//
// Four lanes share one unit or two. Each keeps a quarter of what the units listen to (the states and inputs of the step before, in one row
// z) in registers, V; a quarter of what they speak to, W; and the gradient of V. Shared memory holds the rows z of all timesteps. So a
// timestep is one row of products, two shuffles and one barrier, and nothing is read from far away. Two units to a thread halve what
// is read of z, which is what bounds a step of a hundred units (one wave of 128 bytes in each cycle); for a few, one is quicker.

#define LANES 4
#define GROUPS (((R + UNITS - 1) / UNITS + 7) / 8 * 8)
#define ROWS (GROUPS * UNITS)
#define THREADS (GROUPS * LANES)
#define Z (R + NI)
#define ZP ((Z + 15) / 16 * 16)
#define RP ((R + 15) / 16 * 16)
#define WIDE (RP + 4)
#define KV (ZP / 16)
#define KW (RP / 16)
#define KO ((NO + LANES - 1) / LANES)
#define WARPS (THREADS / 32)
#define SLOTS (UNITS * (KV * 4 + KO) + 2)
#define P_REC (NI * R)
#define P_BIAS (P_REC + R * R)
#define P_OUT (P_BIAS + R)
#define P_LAST (P_OUT + R * NO)
#define P_ALL (P_LAST + NO)

#if WARPS == 1
#define BARRIER __syncwarp()
#else
#define BARRIER __syncthreads()
#endif

// Unit u of a thread is group + u * GROUPS; of two, a lane ends up with the sum of the one that has its own parity.
#define TURN(lane) (UNITS == 1 ? 0 : (lane) & 1)
struct Own {  // what a thread holds of its network
    float4 v[UNITS][KV], w[UNITS][KW], dv[UNITS][KV];
    float out[UNITS][KO], dout[UNITS][KO];
    float bias, dbias, last, dlast;  // bias of the lane's own unit
};

__device__ __forceinline__ float all(float4 sum) { return (sum.x + sum.y) + (sum.z + sum.w); }

__device__ __forceinline__ float four(float sum) {  // the sum over four lanes, for all of them
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

// Each unit's sum over four lanes with two shuffles: of two units, lanes of even parity get the first, of odd parity the second.
__device__ __forceinline__ float share(const float4 (&sums)[UNITS], int lane) {
#if UNITS == 1
    return four(all(sums[0]));
#else
    float first = all(sums[0]), second = all(sums[1]);
    float given = lane & 1 ? first : second, kept = lane & 1 ? second : first;
    kept += __shfl_xor_sync(0xffffffffu, given, 1);
    return kept + __shfl_xor_sync(0xffffffffu, kept, 2);
#endif
}

__device__ __forceinline__ void add(float4& sum, float4 a, float4 b) {
    sum.x = fmaf(a.x, b.x, sum.x);
    sum.y = fmaf(a.y, b.y, sum.y);
    sum.z = fmaf(a.z, b.z, sum.z);
    sum.w = fmaf(a.w, b.w, sum.w);
}

__device__ __forceinline__ void add(float4& sum, float4 a, float b) { add(sum, a, make_float4(b, b, b, b)); }

__device__ __forceinline__ float activate(float a) {
#if ACT == 0
    return fmaxf(a, 0.0f);
#elif ACT == 1
    return 1.0f / (1.0f + __expf(-a));
#else
    return tanhf(a);
#endif
}

__device__ __forceinline__ float slope_of(float r) {  // of the activation, from its value
#if ACT == 0
    return r > 0.0f ? 1.0f : 0.0f;
#elif ACT == 1
    return r * (1.0f - r);
#else
    return 1.0f - r * r;
#endif
}

__device__ __forceinline__ void fetch(float* there, const float* here) {  // global to shared memory, beside other work
    unsigned address = (unsigned)__cvta_generic_to_shared(there);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(here));
}

__device__ __forceinline__ float& part(float4& four, int c) { return reinterpret_cast<float*>(&four)[c]; }

__device__ void load(Own& own, const float* p, int group, int lane) {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int unit = group + u * GROUPS;
        bool real = unit < R;
#pragma unroll
        for (int k = 0; k < KV; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int j = k * 16 + lane * 4 + c;
                float value = 0.0f;
                if (real && j < R) value = p[P_REC + j * R + unit];
                else if (real && j < Z) value = p[(j - R) * R + unit];
                part(own.v[u][k], c) = value;
            }
#pragma unroll
        for (int k = 0; k < KW; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int m = k * 16 + lane * 4 + c;
                part(own.w[u][k], c) = real && m < R ? p[P_REC + unit * R + m] : 0.0f;
            }
#pragma unroll
        for (int k = 0; k < KO; k++) {
            int o = k * LANES + lane;
            own.out[u][k] = real && o < NO ? p[P_OUT + unit * NO + o] : 0.0f;
        }
    }
    int mine = group + TURN(lane) * GROUPS;
    own.bias = mine < R ? p[P_BIAS + mine] : 0.0f;
    own.last = threadIdx.x < NO ? p[P_LAST + threadIdx.x] : 0.0f;
}

__device__ void store(float4 (&v)[UNITS][KV], float (&out)[UNITS][KO], float bias, float last, float* p, int group, int lane) {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int unit = group + u * GROUPS;
        if (unit >= R) continue;
#pragma unroll
        for (int k = 0; k < KV; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int j = k * 16 + lane * 4 + c;
                if (j < R) p[P_REC + j * R + unit] = part(v[u][k], c);
                else if (j < Z) p[(j - R) * R + unit] = part(v[u][k], c);
            }
#pragma unroll
        for (int k = 0; k < KO; k++)
            if (k * LANES + lane < NO) p[P_OUT + unit * NO + k * LANES + lane] = out[u][k];
    }
    int mine = group + TURN(lane) * GROUPS;
    if (lane < UNITS && mine < R) p[P_BIAS + mine] = bias;
    if (threadIdx.x < NO) p[P_LAST + threadIdx.x] = last;
}

__device__ void clear(Own& own) {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
#pragma unroll
        for (int k = 0; k < KV; k++) own.dv[u][k] = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < KO; k++) own.dout[u][k] = 0.0f;
    }
    own.dbias = own.dlast = 0.0f;
}

// States of all timesteps into the rows z; `rates` keeps the activation where leaking hides it in the state.
__device__ void go_forward(Own& own, float* z, float* rates, const float* noise, float leak, int n_steps, int group, int lane) {
    float state = 0.0f;
    int mine = group + TURN(lane) * GROUPS;
    bool writes = lane < UNITS && mine < R;
    for (int t = 0; t < n_steps; t++) {
        const float4* row = reinterpret_cast<const float4*>(z + t * ZP);
        float heard = noise != nullptr && mine < R ? noise[t * R + mine] : 0.0f;
        float4 sums[UNITS] = {};
#pragma unroll
        for (int k = 0; k < KV; k++) {
            float4 here = row[k * 4 + lane];
#pragma unroll
            for (int u = 0; u < UNITS; u++) add(sums[u], here, own.v[u][k]);
        }
        float rate = activate(share(sums, lane) + own.bias + heard);
#if LEAKY
        state = (1.0f - leak) * state + leak * rate;
        if (lane < UNITS) rates[t * ROWS + mine] = rate;
#else
        state = rate;
#endif
        if (writes) z[(t + 1) * ZP + mine] = state;
        BARRIER;
    }
}

// The outputs of all timesteps; each group of lanes takes every GROUPS-th of them.
__device__ void read_out(const float* z, const float* turned, const float* last, float* outputs, int n_steps, int group, int lane) {
    for (int place = group; place < (n_steps * NO + GROUPS - 1) / GROUPS * GROUPS; place += GROUPS) {
        bool real = place < n_steps * NO;
        int t = real ? place / NO : 0, o = real ? place % NO : 0;
        const float4* row = reinterpret_cast<const float4*>(z + (t + 1) * ZP);
        const float4* weight = reinterpret_cast<const float4*>(turned + o * RP);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < KW; k++) add(sum, row[k * 4 + lane], weight[k * 4 + lane]);  // where a row's inputs begin, the weights are 0
        float found = four(all(sum));
        if (real && lane == 0) outputs[place] = found + last[o];
    }
}

// From the slopes at the outputs to all gradients, last timestep first.
__device__ void go_back(
    Own& own, const float* z, const float* rates, const float* slopes, float* sent, float* kept, float leak, int n_steps, int group, int lane) {
    float carried = 0.0f;
    int mine = group + TURN(lane) * GROUPS;
    bool writes = lane < UNITS && mine < R;
    for (int t = n_steps - 1; t >= 0; t--) {
        const float4* spoken = reinterpret_cast<const float4*>(sent + ((t + 1) & 1) * RP);
        float4 sums[UNITS] = {};
        float states[UNITS], drives[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) states[u] = group + u * GROUPS < R ? z[(t + 1) * ZP + group + u * GROUPS] : 0.0f;
        if (t + 1 < n_steps) {
#pragma unroll
            for (int k = 0; k < KW; k++) {
                float4 here = spoken[k * 4 + lane];
#pragma unroll
                for (int u = 0; u < UNITS; u++) add(sums[u], here, own.w[u][k]);
            }
        }
#pragma unroll
        for (int k = 0; k < KO; k++) {
            int o = k * LANES + lane;
            float slope = o < NO ? slopes[t * NO + o] : 0.0f;
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                sums[u].x = fmaf(slope, own.out[u][k], sums[u].x);
                own.dout[u][k] = fmaf(slope, states[u], own.dout[u][k]);
            }
        }
        float wanted = share(sums, lane) + carried;
#if LEAKY
        carried = (1.0f - leak) * wanted;
        float drive = mine < R ? leak * wanted * slope_of(rates[t * ROWS + mine]) : 0.0f;
#else
        float drive = mine < R ? wanted * slope_of(TURN(lane) ? states[UNITS - 1] : states[0]) : 0.0f;
#endif
        if (writes) {
            sent[(t & 1) * RP + mine] = drive;
            if (kept != nullptr) kept[t * R + mine] = drive;
        }
#if UNITS == 1
        drives[0] = drive;
#else
        float other = __shfl_xor_sync(0xffffffffu, drive, 1);
        drives[0] = lane & 1 ? other : drive;
        drives[1] = lane & 1 ? drive : other;
#endif
        const float4* row = reinterpret_cast<const float4*>(z + t * ZP);
#pragma unroll
        for (int k = 0; k < KV; k++) {
            float4 here = row[k * 4 + lane];
#pragma unroll
            for (int u = 0; u < UNITS; u++) add(own.dv[u][k], here, drives[u]);
        }
        own.dbias += drive;
        BARRIER;
    }
    if (threadIdx.x < NO)
        for (int t = 0; t < n_steps; t++) own.dlast += slopes[t * NO + threadIdx.x];
}

__device__ float over_block(float value, float* shelf) {  // the sum over all threads, for all of them
#pragma unroll
    for (int apart = 16; apart; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    if (threadIdx.x % 32 == 0) shelf[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += shelf[warp];
    __syncthreads();
    return sum;
}

__device__ void read_out_weights(Own& own, float* turned, float* last, int group, int lane) {
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int k = 0; k < KO; k++)
            if (group + u * GROUPS < R && k * LANES + lane < NO) turned[(k * LANES + lane) * RP + group + u * GROUPS] = own.out[u][k];
    if (threadIdx.x < NO) last[threadIdx.x] = own.last;
}

#if MODE == 0

__device__ __forceinline__ float renewed(float value, float slope, float* state, const float* hyper, float first, float second) {
    // hyper: rate, momentum, beta1, beta2, eps, clip, leak, is Adam. `first` and `second` undo Adam's start from 0.
    if (hyper[7] > 0.0f) {
        float mean = hyper[2] * state[0] + (1.0f - hyper[2]) * slope;
        float square = hyper[3] * state[THREADS * SLOTS] + (1.0f - hyper[3]) * slope * slope;
        state[0] = mean;
        state[THREADS * SLOTS] = square;
        return value - hyper[0] * (mean * first) / (sqrtf(square * second) + hyper[4]);
    }
    if (hyper[1] > 0.0f) {
        slope += hyper[1] * state[0];
        state[0] = slope;
    }
    return value - hyper[0] * slope;
}

__device__ void update(Own& own, float* state, const float* hyper, float scale, int number, int group, int lane, float* square) {
    float first = 1.0f, second = 1.0f;
    if (hyper[7] > 0.0f) {
        first = 1.0f / (1.0f - powf(hyper[2], (float)number));
        second = 1.0f / (1.0f - powf(hyper[3], (float)number));
    }
    float* mine = state + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int unit = group + u * GROUPS;
        float* here = mine + u * (KV * 4 + KO) * THREADS;
#pragma unroll
        for (int k = 0; k < KV; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int j = k * 16 + lane * 4 + c;
                float value = renewed(part(own.v[u][k], c), scale * part(own.dv[u][k], c), here + (k * 4 + c) * THREADS, hyper, first, second);
                part(own.v[u][k], c) = value;
                if (unit < R && j < R) square[j * WIDE + unit] = value;
            }
#pragma unroll
        for (int k = 0; k < KO; k++) own.out[u][k] = renewed(own.out[u][k], scale * own.dout[u][k], here + (KV * 4 + k) * THREADS, hyper, first, second);
    }
    own.bias = renewed(own.bias, scale * own.dbias, mine + UNITS * (KV * 4 + KO) * THREADS, hyper, first, second);
    own.last = renewed(own.last, scale * own.dlast, mine + (UNITS * (KV * 4 + KO) + 1) * THREADS, hyper, first, second);
    __syncthreads();
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int k = 0; k < KW; k++)
            if (group + u * GROUPS < R) own.w[u][k] = *reinterpret_cast<const float4*>(square + (group + u * GROUPS) * WIDE + k * 16 + lane * 4);
}

__device__ void fetch_example(float* inputs, float* targets, const float* all_inputs, const float* all_targets, int example, int n_steps) {
    for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) fetch(inputs + i, all_inputs + (long long)example * n_steps * NI + i);
    int wide = CROSS ? 1 : NO;
    for (int i = threadIdx.x; i < n_steps * wide; i += THREADS) fetch(targets + i, all_targets + (long long)example * n_steps * wide + i);
    asm volatile("cp.async.commit_group;");
}

// Outputs become slopes in place; returns this thread's share of the loss.
__device__ float compare(float* outputs, const float* targets, const float* mask, float norm, int n_steps) {
    float loss = 0.0f;
#if CROSS
    for (int t = threadIdx.x; t < n_steps; t += THREADS) {
        float* row = outputs + t * NO;
        int wanted = (int)targets[t];
        float most = row[0], sum = 0.0f, weight = mask == nullptr ? norm : norm * mask[t];
        for (int o = 1; o < NO; o++) most = fmaxf(most, row[o]);
        for (int o = 0; o < NO; o++) sum += expf(row[o] - most);
        loss += weight * (logf(sum) + most - row[wanted]);
        for (int o = 0; o < NO; o++) row[o] = weight * (expf(row[o] - most) / sum - (o == wanted ? 1.0f : 0.0f));
    }
#else
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) {
        float weight = mask == nullptr ? norm : norm * mask[i / NO];
        float apart = outputs[i] - targets[i];
        loss += weight * apart * apart;
        outputs[i] = 2.0f * weight * apart;
    }
#endif
    return loss;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fused(float* weights, float* states, const float* hypers, const float* all_inputs, const float* all_targets, const float* masks, const int* orders,
      const float* norms, const float* noises, float* losses, int n_steps, int updates, int batch, int before, int examples, int has_mask, int has_noise,
      int shared_data) {
    extern __shared__ float4 memory[];
    float* z = reinterpret_cast<float*>(memory);
    float* square = z + (n_steps + 1) * ZP;
    float* turned = square + R * WIDE;
    float* sent = turned + NO * RP;
    float* rates = sent + 2 * RP;
    float* outputs = rates + (LEAKY ? n_steps * ROWS : 0);
    float* inputs = outputs + n_steps * NO;
    float* targets = inputs + 2 * n_steps * NI;
    float* shelf = targets + 2 * n_steps * NO;
    float* last = shelf + WARPS;
    float* hyper = last + NO;

    int net = blockIdx.x, group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int data = shared_data ? 0 : net;
    weights += (long long)net * P_ALL;
    states += (long long)net * 2 * THREADS * SLOTS;
    all_inputs += (long long)data * examples * n_steps * NI;
    all_targets += (long long)data * examples * n_steps * (CROSS ? 1 : NO);
    const int* order = orders + (long long)net * updates * batch;
    if (threadIdx.x < 8) hyper[threadIdx.x] = hypers[net * 8 + threadIdx.x];
    for (int i = threadIdx.x; i < (n_steps + 1) * ZP; i += THREADS) z[i] = 0.0f;
    for (int i = threadIdx.x; i < R * WIDE; i += THREADS) square[i] = 0.0f;
    for (int i = threadIdx.x; i < NO * RP + 2 * RP; i += THREADS) turned[i] = 0.0f;
    Own own;
    load(own, weights, group, lane);
    fetch_example(inputs, targets, all_inputs, all_targets, order[0], n_steps);
    __syncthreads();
    int side = 0;
    for (int number = 0; number < updates; number++) {
        float loss = 0.0f;
        clear(own);
        read_out_weights(own, turned, last, group, lane);
        for (int member = 0; member < batch; member++, side ^= 1) {
            int place = number * batch + member, example = order[place];
            asm volatile("cp.async.wait_all;");
            __syncthreads();
            const float* here = inputs + side * n_steps * NI;
            for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) z[i / NI * ZP + R + i % NI] = here[i];
            __syncthreads();
            if (place + 1 < updates * batch)
                fetch_example(inputs + (side ^ 1) * n_steps * NI, targets + (side ^ 1) * n_steps * NO, all_inputs, all_targets, order[place + 1], n_steps);
            const float* noise = has_noise ? noises + ((long long)net * updates * batch + place) * n_steps * R : nullptr;
            go_forward(own, z, rates, noise, hyper[6], n_steps, group, lane);
            read_out(z, turned, last, outputs, n_steps, group, lane);
            __syncthreads();
            const float* mask = has_mask ? masks + ((long long)data * examples + example) * n_steps : nullptr;
            loss += compare(outputs, targets + side * n_steps * NO, mask, norms[(long long)net * updates + number], n_steps);
            __syncthreads();
            go_back(own, z, rates, outputs, sent, nullptr, hyper[6], n_steps, group, lane);
        }
        float4 squares = make_float4(lane < UNITS ? own.dbias * own.dbias : 0.0f, own.dlast * own.dlast, 0.0f, 0.0f);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
#pragma unroll
            for (int k = 0; k < KV; k++) add(squares, own.dv[u][k], own.dv[u][k]);
#pragma unroll
            for (int k = 0; k < KO; k++) squares.x = fmaf(own.dout[u][k], own.dout[u][k], squares.x);
        }
        float length = sqrtf(over_block(all(squares), shelf));
        float scale = fminf(1.0f, hyper[5] / (length + 1e-6f));
        loss = over_block(loss, shelf);
        if (threadIdx.x == 0) losses[(long long)net * updates + number] = loss;
        update(own, states, hyper, scale, before + number + 1, group, lane, square);
        __syncthreads();
    }
    store(own.v, own.out, own.bias, own.last, weights, group, lane);
}

#else  // one example of a batch, for autograd

extern "C" __global__ void __launch_bounds__(THREADS, 1)
fused(const float* weights, const float* all_inputs, const float* noises, float* all_outputs, float* all_states, float* all_rates, const float* all_slopes,
      float* gradients, float* drives, int n_steps, int batch, int has_noise) {
    extern __shared__ float4 memory[];
    float* z = reinterpret_cast<float*>(memory);
    float* turned = z + (n_steps + 1) * ZP;
    float* sent = turned + NO * RP;
    float* rates = sent + 2 * RP;
    float* outputs = rates + (LEAKY ? n_steps * ROWS : 0);
    float* last = outputs + n_steps * NO;

    int example = blockIdx.x, group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    for (int i = threadIdx.x; i < (n_steps + 1) * ZP; i += THREADS) z[i] = 0.0f;
    for (int i = threadIdx.x; i < NO * RP + 2 * RP; i += THREADS) turned[i] = 0.0f;
    Own own;
    load(own, weights, group, lane);
    clear(own);
    __syncthreads();
    read_out_weights(own, turned, last, group, lane);
    for (int i = threadIdx.x; i < n_steps * NI; i += THREADS) z[i / NI * ZP + R + i % NI] = all_inputs[((i / NI) * batch + example) * NI + i % NI];
    float* states = all_states + (long long)example * n_steps * R;
    float leak = weights[P_ALL];
#if MODE == 1
    __syncthreads();
    go_forward(own, z, rates, has_noise ? noises + (long long)example * n_steps * R : nullptr, leak, n_steps, group, lane);
    read_out(z, turned, last, outputs, n_steps, group, lane);
    for (int i = threadIdx.x; i < n_steps * R; i += THREADS) states[i] = z[(i / R + 1) * ZP + i % R];
    if (LEAKY)
        for (int i = threadIdx.x; i < n_steps * ROWS; i += THREADS) all_rates[(long long)example * n_steps * ROWS + i] = rates[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) all_outputs[((i / NO) * batch + example) * NO + i % NO] = outputs[i];
#else
    for (int i = threadIdx.x; i < n_steps * R; i += THREADS) z[(i / R + 1) * ZP + i % R] = states[i];
    if (LEAKY)
        for (int i = threadIdx.x; i < n_steps * ROWS; i += THREADS) rates[i] = all_rates[(long long)example * n_steps * ROWS + i];
    for (int i = threadIdx.x; i < n_steps * NO; i += THREADS) outputs[i] = all_slopes[((i / NO) * batch + example) * NO + i % NO];
    __syncthreads();
    go_back(own, z, rates, outputs, sent, drives + (long long)example * n_steps * R, leak, n_steps, group, lane);
    store(own.dv, own.dout, own.dbias, own.dlast, gradients + (long long)example * P_ALL, group, lane);
#endif
}

#endif
